"""Tests that tokens are renewed before they expire, with one attempt at a time, and how failed renewals
affect calls."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from structlog.testing import capture_logs

from tests.providers.identity.token_servers import (
    QUICK,
    SECRET,
    authority,
    identified,
    origin,
    refused,
    service_account,
    token,
)
from tests.support.backend_calls import Outcome, make, make_call, until
from tests.support.upstream import Peer, Upstream, Verb, chat, hang, refuse, unused_url
from tollkeeper.core.errors import BackendFailed, DeadlineExceeded, ProviderRejected, Unavailable
from tollkeeper.providers.identities import EntraIdentity, GoogleIdentity
from tollkeeper.providers.identity.failure import IdentityFailure
from tollkeeper.providers.identity.renewal import Expiring, Renewed
from tollkeeper.providers.routing import RoutedBackend

Identify = Callable[[str], GoogleIdentity]


@pytest.fixture
def google(tmp_path: Path, private_key: rsa.RSAPrivateKey) -> Identify:
    def identify(token_uri: str) -> GoogleIdentity:
        path = service_account(tmp_path / "key.json", private_key, token_uri)
        return GoogleIdentity(str(path))

    return identify


def _sent(upstream: Upstream) -> list[str]:
    return [request.headers["authorization"] for request in upstream.requests]


async def _call_with(token: str, backend: RoutedBackend, upstream: Upstream) -> Outcome:
    """Calls until the backend uses this token, because another task stores the token after its arrival."""
    async with asyncio.timeout(20):
        while True:
            outcome = await make(backend, make_call())
            if _sent(upstream)[-1] == f"Bearer {token}":
                return outcome


async def test_a_token_is_renewed_before_its_end_while_calls_go_on(google: Identify) -> None:
    async with (
        Upstream(token("t1", expires_in=8), token("t2")) as tokens,
        Upstream(chat()) as upstream,
        identified(google(tokens.url), upstream.url) as backend,
    ):
        (await make(backend, make_call())).check_complete()
        # The token is renewed although no call needs it yet.
        await until(lambda: len(tokens.requests) == 2)
        (await _call_with("t2", backend, upstream)).check_complete()
    assert set(_sent(upstream)) == {"Bearer t1", "Bearer t2"}


async def test_a_call_does_not_wait_for_a_renewal(google: Identify) -> None:
    """The token service hangs at the second token, while the first token is still valid."""
    async with (
        Upstream(token("t1", expires_in=60), hang()) as tokens,
        Upstream(chat()) as upstream,
        identified(
            google(tokens.url),
            upstream.url,
            times=replace(QUICK, ahead_share=0.995, attempt_s=60, interval_s_min=0.01),
        ) as backend,
    ):
        (await make(backend, make_call())).check_complete()
        await until(lambda: tokens.under_way == 1 and len(tokens.requests) == 2)
        for _ in range(3):
            (await make(backend, make_call())).check_complete()
        assert tokens.under_way == 1
    assert _sent(upstream) == ["Bearer t1"] * 4


async def test_many_calls_at_once_ask_for_one_token(google: Identify) -> None:
    release = asyncio.Event()

    async def late(peer: Peer) -> None:
        await release.wait()
        await token("t1")(peer)

    async with (
        Upstream(late) as tokens,
        Upstream(chat()) as upstream,
        identified(google(tokens.url), upstream.url) as backend,
    ):
        calls = [asyncio.create_task(make(backend, make_call())) for _ in range(20)]
        await until(lambda: len(tokens.requests) == 1)
        await asyncio.sleep(0.05)
        assert upstream.requests == []
        release.set()
        for outcome in await asyncio.gather(*calls):
            outcome.check_complete()
        assert len(tokens.requests) == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_a_token_that_the_backend_refuses_is_replaced(google: Identify, status: int) -> None:
    """The token may have been revoked. The call fails, and a later call uses the next token."""
    async with (
        Upstream(token("t1"), token("t2")) as tokens,
        Upstream(refuse(status), chat()) as upstream,
        identified(google(tokens.url), upstream.url) as backend,
    ):
        await asyncio.sleep(0)
        await until(lambda: len(tokens.requests) == 1 and tokens.under_way == 0)
        await asyncio.sleep(2 * QUICK.interval_s_min)
        outcome = await make(backend, make_call())
        assert isinstance(outcome.error, BackendFailed)
        assert not outcome.error.charged
        await until(lambda: len(tokens.requests) == 2)
        (await _call_with("t2", backend, upstream)).check_complete()
    assert set(_sent(upstream)) == {"Bearer t1", "Bearer t2"}


async def test_refusals_do_not_hurry_a_token_that_is_new(google: Identify) -> None:
    """Clients can cause refusals, so the gateway does not request a new token after each refusal."""
    async with (
        Upstream(token("t1")) as tokens,
        Upstream(refuse(403)) as upstream,
        identified(
            google(tokens.url), upstream.url, times=replace(QUICK, interval_s_min=30)
        ) as backend,
    ):
        for _ in range(5):
            assert isinstance((await make(backend, make_call())).error, BackendFailed)
        await asyncio.sleep(0.1)
    assert len(tokens.requests) == 1


FAILURES: dict[str, Verb] = {
    "refused": refused(),
    "refused with a status in it": refused(403, {"status": "PERMISSION_DENIED"}),
    "busy": refuse(503),
    "no token": token(""),
    "no header text": token("a b"),
    "expired": token("t2", expires_in=0),
    "hangs": hang(),
}


@pytest.mark.parametrize("row", FAILURES)
async def test_a_token_that_is_not_renewed_is_used_to_its_end(google: Identify, row: str) -> None:
    with capture_logs() as logs:
        async with (
            Upstream(token("t1", expires_in=90), FAILURES[row]) as tokens,
            Upstream(chat()) as upstream,
            identified(
                google(tokens.url),
                upstream.url,
                times=replace(QUICK, ahead_share=0.995, attempt_s=4),
            ) as backend,
        ):
            (await make(backend, make_call())).check_complete()
            await until(lambda: any(entry["event"] == "credential not renewed" for entry in logs))
            (await make(backend, make_call())).check_complete()
            assert _sent(upstream) == ["Bearer t1"] * 2
    assert SECRET not in str(logs)


async def _until_unavailable(call: Callable[[], Awaitable[Outcome]]) -> Unavailable:
    async with asyncio.timeout(20):
        while not isinstance(error := (await call()).error, Unavailable):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return error


async def test_after_its_end_calls_fail_at_once_and_nothing_is_held_against_the_replica(
    google: Identify,
) -> None:
    async with (
        Upstream(token("t1", expires_in=3), refused()) as tokens,
        Upstream(chat()) as upstream,
        identified(google(tokens.url), *upstream.two_urls, failures_to_eject=1) as backend,
    ):
        (await make(backend, make_call())).check_complete()
        error = await _until_unavailable(lambda: make(backend, make_call()))
        assert not error.charged
        assert error.retry_after_s == 1
        assert "credential" in error.message
        assert SECRET not in error.message
        calls = len(upstream.requests)
        for _ in range(5):
            assert isinstance((await make(backend, make_call())).error, Unavailable)
        assert len(upstream.requests) == calls
        assert set(backend.health().replicas.values()) == {"healthy"}
        # The next attempt of the renewal succeeds.
        tokens.play(token("t9"))
        async with asyncio.timeout(20):
            while (await make(backend, make_call())).error is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert _sent(upstream)[-1] == "Bearer t9"


async def test_no_token_at_all_is_unavailable(google: Identify) -> None:
    async with (
        Upstream(chat()) as upstream,
        identified(google(unused_url()), upstream.url) as backend,
    ):
        outcome = await make(backend, make_call())
        assert isinstance(outcome.error, Unavailable)
        assert not outcome.error.charged
        assert await backend.count_prompt_tokens(make_call(), deadline=1e9) is None
    assert upstream.requests == []


async def test_a_call_waits_no_longer_than_its_deadline(google: Identify) -> None:
    async with (
        Upstream(hang()) as tokens,
        Upstream(chat()) as upstream,
        identified(google(tokens.url), upstream.url) as backend,
    ):
        outcome = await make(backend, make_call(), deadline_s=0.2)
    assert isinstance(outcome.error, DeadlineExceeded)
    assert not outcome.error.charged


async def test_tokens_are_never_shown(google: Identify) -> None:
    quoting = refuse(400, "the tokens first-token and second-token are not valid")
    async with (
        Upstream(token("first-token", expires_in=8), token("second-token")) as tokens,
        Upstream(quoting) as upstream,
        identified(google(tokens.url), upstream.url) as backend,
    ):
        await make(backend, make_call())
        await until(lambda: len(tokens.requests) == 2)
        outcome = await _call_with("second-token", backend, upstream)
    assert isinstance(outcome.error, ProviderRejected)
    assert outcome.error.message.endswith("the tokens [removed] and [removed] are not valid")


async def test_the_secret_of_an_application_is_never_shown(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as logs:
        async with (
            Upstream(authority(refused(401)), tls=tls) as tokens,
            Upstream(chat()) as upstream,
        ):
            monkeypatch.setenv("AZURE_AUTHORITY_HOST", origin(tokens))
            identity = EntraIdentity("tenant", "client", SECRET)
            assert SECRET not in repr(identity)
            async with identified(identity, upstream.url) as backend:
                outcome = await make(backend, make_call())
    assert isinstance(outcome.error, Unavailable)
    assert logs[0]["reason"].startswith("the token service refused")
    assert SECRET not in str(logs) + str(outcome.error)


async def test_a_value_without_an_end_is_obtained_once() -> None:
    asked = 0

    async def obtain(deadline: float) -> Expiring[str]:
        nonlocal asked
        asked += 1
        return Expiring("v", None)

    renewed = Renewed(obtain, description="x", times=QUICK)
    assert [await renewed.get(deadline=1e12) for _ in range(3)] == ["v"] * 3
    await renewed.close()
    assert asked == 1


async def test_an_end_that_nobody_foresaw_is_not_the_end() -> None:
    """One attempt ends with an unexpected error. A later call starts another attempt."""
    failures = iter([RuntimeError("a fault")])

    async def obtain(deadline: float) -> Expiring[str]:
        for failure in failures:
            raise failure
        return Expiring("v", 3600.0)

    renewed = Renewed(obtain, description="x", times=QUICK)
    with pytest.raises(Unavailable):
        await renewed.get(deadline=1e12)
    async with asyncio.timeout(20):
        while not renewed.values:
            with contextlib.suppress(Unavailable):
                await renewed.get(deadline=1e12)
            await asyncio.sleep(0.01)
    assert await renewed.get(deadline=1e12) == "v"
    await renewed.close()


async def test_a_value_without_an_end_may_be_obtained_again() -> None:
    values = iter(("v1", "v2"))

    async def obtain(deadline: float) -> Expiring[str]:
        return Expiring(next(values, "v2"), None, recheck_s=0.05)

    renewed = Renewed(obtain, description="x", times=QUICK)
    assert await renewed.get(deadline=1e12) == "v1"
    await until(lambda: renewed.values == ("v2", "v1"))
    await renewed.close()


async def test_a_library_that_hangs_occupies_one_thread(google: Identify) -> None:
    before = threading.active_count()
    with capture_logs() as logs:
        async with (
            Upstream(hang()) as tokens,
            Upstream(chat()) as upstream,
            identified(
                google(tokens.url), upstream.url, times=replace(QUICK, attempt_s=0.2)
            ) as backend,
        ):
            assert isinstance((await make(backend, make_call())).error, Unavailable)
            await until(lambda: len(logs) >= 4)
            assert threading.active_count() <= before + 1
    reasons = {entry["reason"] for entry in logs}
    assert reasons == {"no answer within 0.2 s", "the previous attempt has not ended"}


async def test_what_cannot_be_read_is_a_failure_and_not_the_end() -> None:
    failures = iter([LookupError("secret"), IdentityFailure("no")])

    async def obtain(deadline: float) -> Expiring[str]:
        for failure in failures:
            raise failure
        return Expiring("v", 3600.0)

    renewed = Renewed(obtain, description="x", times=QUICK)
    with capture_logs() as logs:
        with pytest.raises(Unavailable):
            await renewed.get(deadline=1e12)
        await until(lambda: bool(renewed.values))
    assert await renewed.get(deadline=1e12) == "v"
    await renewed.close()
    assert "secret" not in str(logs)
