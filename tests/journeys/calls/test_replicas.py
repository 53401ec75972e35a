"""Tests backends with several replicas: sessions keep their replica, and only free calls are retried."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import (
    COST,
    ScriptedGateway,
    answering_gateway,
    scripted_gateway,
)
from tests.support.upstream import Upstream, Verb, chat, refuse, reset_before_headers, unused_url

SESSION = "X-Service-Session-ID"
BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])


@asynccontextmanager
async def replicas(count: int) -> AsyncIterator[list[Upstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Upstream(chat())) for _ in range(count)]


async def place_of(scripted: ScriptedGateway, upstreams: list[Upstream], **call: Any) -> int:
    """Sends a call, and returns the index of the replica that answers it."""
    before = [len(upstream.requests) for upstream in upstreams]
    headers = {**scripted.tenant.as_customer, **call.pop("headers", {})}
    found = await scripted.chat(headers=headers, **call)
    assert found.status_code == 200, found.text
    (place,) = (at for at, upstream in enumerate(upstreams) if len(upstream.requests) > before[at])
    return place


async def test_a_session_has_its_replica_in_every_process(data_dir: Path, conninfo: str) -> None:
    async with replicas(3) as upstreams:
        urls = tuple(upstream.url for upstream in upstreams)
        async with (
            scripted_gateway(data_dir, conninfo, upstreams[0], urls=urls) as one,
            scripted_gateway(data_dir, conninfo, upstreams[0], urls=urls[::-1]) as other,
        ):
            stranger = await one.with_tenant()
            mine, theirs = [], []
            for number in range(12):
                session = {SESSION: f"session {number}"}
                place = await place_of(one, upstreams, headers=session)
                for call in (
                    {"headers": session, "stream": True},
                    {"headers": {"X-Alt-Session-ID": session[SESSION]}},
                    {"headers": session, "prompt_cache_key": "another hint"},
                    {"prompt_cache_key": session[SESSION]},
                ):
                    assert await place_of(one, upstreams, **call) == place
                # The same tenant calls the other process with the same key.
                elsewhere = ScriptedGateway(
                    other.gateway, other.upstream, one.tenant, probe_tenant=one.probe_tenant
                )
                assert await place_of(elsewhere, upstreams, headers=session) == place
                mine.append(place)
                theirs.append(await place_of(stranger, upstreams, headers=session))
            assert len(set(mine)) > 1, "not everybody goes to the same place"
            assert mine != theirs, "whose sessions these are is part of their place"


@BOTH
@pytest.mark.parametrize("verb", [refuse(500), refuse(429), refuse(404)], ids=["500", "429", "404"])
async def test_a_refusal_is_tried_elsewhere(
    data_dir: Path, conninfo: str, verb: Verb, streamed: bool
) -> None:
    async with replicas(2) as (bad, good):
        bad.play(verb)
        async with scripted_gateway(
            data_dir, conninfo, good, urls=(bad.url, unused_url(), good.url), backend={"retries": 2}
        ) as scripted:
            for _ in range(3):
                found = await scripted.chat(stream=streamed)
                assert found.status_code == 200, found.text
            balance = await scripted.balance()
            assert (balance["settled"], balance["resolutions"]) == (3 * COST, 3)


@BOTH
async def test_what_may_have_run_is_not_repeated(
    data_dir: Path, conninfo: str, streamed: bool
) -> None:
    async with replicas(2) as upstreams:
        for upstream in upstreams:
            upstream.play(reset_before_headers())
        urls = tuple(upstream.url for upstream in upstreams)
        async with scripted_gateway(data_dir, conninfo, upstreams[0], urls=urls) as scripted:
            found = await scripted.chat(stream=streamed)
            assert_error(found, 502, "provider_unavailable")
            assert found.headers["x-should-retry"] == "false"
            assert sum(len(upstream.requests) for upstream in upstreams) == 1
            assert (await scripted.entry_of(found)).status == "unsettled"


async def test_the_backends_own_key_travels_and_stays_secret(
    data_dir: Path, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-of-the-backend"
    monkeypatch.setenv("BACKEND_KEY", secret)
    async with answering_gateway(
        data_dir, conninfo, backend={"api_key_env": "BACKEND_KEY"}
    ) as scripted:
        headers = {"x-api-key": scripted.tenant.project_key}
        assert (await scripted.chat(headers=headers)).status_code == 200
        received = scripted.upstream.requests[-1]
        assert received.headers["authorization"] == f"Bearer {secret}"
        assert scripted.tenant.project_key.encode() not in received.head + received.body
        scripted.upstream.play(refuse(422, f"the key {secret} may not use this model"))
        found = await scripted.chat()
        assert_error(found, 422, "unprocessable")
        assert secret not in found.text
        scripted.upstream.play(refuse(401, f"{secret} is wrong"))
        found = await scripted.chat()
        assert_error(found, 502, "provider_unavailable")
        assert secret not in found.text
