"""Tests in which order a call tries several backends, and how the call is changed for each of them."""

from collections import Counter
from dataclasses import replace

import msgspec

from tests.support.backend_calls import MODEL, make_call
from tollkeeper.core.catalog import Route
from tollkeeper.core.prompt import CachingWish
from tollkeeper.providers.fallback import attempt_order, call_on


def _route(name: str, *, order: int = 0, weight: int = 1, salt_field: str = "") -> Route:
    return Route(replace(MODEL, backend=name, cache_salt_field=salt_field), order, weight)


def _names(routes: list[Route]) -> list[str]:
    return [route.model.backend for route in routes]


def test_a_lower_order_comes_first() -> None:
    routes = [_route("c", order=2), _route("a"), _route("b", order=1, weight=1000)]
    for _ in range(20):
        assert _names(attempt_order(routes, None)) == ["a", "b", "c"]


def test_equal_orders_share_by_weight() -> None:
    routes = [_route("a", weight=1), _route("b", weight=3)]
    firsts = Counter(
        attempt_order(routes, number.to_bytes(4, "big"))[0].model.backend for number in range(2000)
    )
    assert 1350 <= firsts["b"] <= 1650


def test_a_session_has_one_order() -> None:
    routes = [_route(name) for name in "abcdef"]
    orders = {tuple(_names(attempt_order(routes, b"session"))) for _ in range(20)}
    assert len(orders) == 1
    others = {tuple(_names(attempt_order(routes, bytes([n])))) for n in range(20)}
    assert len(others) > 5


def test_a_salt_of_the_gateway_goes_where_there_is_a_field_for_it() -> None:
    call = make_call()

    def with_salt(*, asked: bool) -> str | None:
        caching = CachingWish(salt="hash", salt_is_asked=asked)
        salted = msgspec.structs.replace(
            call, prompt=msgspec.structs.replace(call.prompt, caching=caching)
        )
        return call_on(_route("plain"), salted).prompt.caching.salt

    assert with_salt(asked=False) is None
    assert with_salt(asked=True) == "hash"
    salting = call_on(
        _route("salting", salt_field="cache_salt"),
        msgspec.structs.replace(
            call,
            prompt=msgspec.structs.replace(call.prompt, caching=CachingWish(salt="hash")),
        ),
    )
    assert salting.prompt.caching.salt == "hash"
