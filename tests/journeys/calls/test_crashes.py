"""Tests that every call ends exactly once if its process is killed, stopped or reloaded."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from tests.support.data_folders import data_folder
from tests.support.gateway import assert_error
from tests.support.gateway_processes import InstalledProgram, installed_program
from tests.support.paused_answer import PausedAnswer
from tests.support.program import Serving
from tests.support.scripted_gateway import COST, ScriptedGateway, chat_body, eventually, read_stream
from tests.support.upstream import Peer, Upstream, Verb, chat, hang
from tollkeeper.database.migrations import migrate
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.slow

Rest = Callable[[], Awaitable[str]]
# The setting `server.grace_s`, in seconds.
GRACE_S = 3


@pytest.fixture(scope="module")
async def installed(compiled: dict[str, str]) -> AsyncIterator[InstalledProgram]:
    """Installs the program with its own database, because these tests verify the whole ledger."""
    with (
        data_folder() as folder,
        EmbeddedPostgres(folder / "data") as server,
    ):
        migrate(server.conninfo)
        async with (
            Upstream(chat()) as upstream,
            installed_program(
                folder,
                folder / "data",
                server.conninfo,
                upstream,
                compiled,
                server={"grace_s": GRACE_S},
                changed_constants={"database.processes.LEASE_S": 1},
                limits={"inference_deadline_s": 60},
            ) as made,
        ):
            yield made


@pytest.fixture(scope="module")
async def served(installed: InstalledProgram) -> AsyncIterator[tuple[Serving, ScriptedGateway]]:
    """Starts a gateway that every test leaves serving."""
    async with installed.serving() as running:
        yield running


def by_user(**verbs: Verb) -> Verb:
    """Returns a verb that plays to each call the verb named by its field `user`."""

    async def play(peer: Peer) -> None:
        await verbs[peer.request.json.get("user", "anybody")](peer)

    return play


async def open_stream(scripted: ScriptedGateway, streams: AsyncExitStack, user: str) -> Rest:
    """Opens a stream and reads its first piece. The returned function reads it to its end."""
    response = await streams.enter_async_context(
        scripted.gateway.client.stream(
            "POST",
            "/v1/chat/completions",
            json=chat_body(stream=True, user=user),
            headers=scripted.tenant.as_customer,
        )
    )
    assert response.status_code == 200, await response.aread()
    pieces = response.aiter_text()
    first = await anext(pieces)

    async def rest() -> str:
        return first + "".join([piece async for piece in pieces])

    return rest


async def is_cut(reading: Awaitable[Any]) -> bool:
    try:
        await reading
    except httpx2.TransportError:
        return True
    return False


async def answers_again(scripted: ScriptedGateway) -> None:
    """Waits until the gateway answers a call again."""
    async with asyncio.timeout(60):
        while True:
            try:
                if (await scripted.chat(user="anybody")).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.1)


async def statuses(scripted: ScriptedGateway) -> list[str]:
    return sorted(entry.status for entry in await scripted.entries())


async def unsettled_and_costs(scripted: ScriptedGateway) -> tuple[int, list[str]]:
    """Returns the number of unsettled calls and the other calls' amounts, by the costs since yesterday."""
    day = int(time.time()) // 86400 * 86400
    found = await scripted.gateway.client.get(
        "/v1/organization/costs",
        params={"start_time": day - 86400, "group_by": "line_item"},
        headers=scripted.tenant.as_admin,
    )
    assert found.status_code == 200, found.text
    amounts = [
        result["amount"]["value"] for bucket in found.json()["data"] for result in bucket["results"]
    ]
    return int(found.headers.get("x-unsettled-requests", "0")), amounts


async def test_a_killed_worker_leaves_no_call_in_the_dark(
    installed: InstalledProgram, served: tuple[Serving, ScriptedGateway]
) -> None:
    """P1: A worker is killed with calls at several points. A call of unknown cost is unsettled, not free."""
    open_answer, racing_answer = PausedAnswer(), PausedAnswer()
    verbs = {
        "open": open_answer.verb(),
        "racing": racing_answer.verb(),
        "hang": hang(),
        "done": chat(),
    }
    installed.upstream.play(by_user(**verbs, anybody=chat()))
    running, first = served
    async with AsyncExitStack() as streams:
        scripted = await first.with_tenant()
        assert (await scripted.chat(user="done")).status_code == 200
        hanging = [
            asyncio.ensure_future(is_cut(scripted.chat(user="hang", stream=streamed)))
            for streamed in (False, True)
        ]
        opened = await open_stream(scripted, streams, "open")
        racing = await open_stream(scripted, streams, "racing")
        done = await open_stream(scripted, streams, "done")
        assert read_stream(await done()).done
        await eventually(lambda: installed.upstream.under_way == 4)

        (worker,) = running.workers()
        racing_answer.may_end.set()
        await asyncio.sleep(0.001)
        os.kill(worker.pid, signal.SIGKILL)
        assert all(await asyncio.gather(*hanging))
        assert await is_cut(opened())
        acknowledged = not await is_cut(racing())
        await answers_again(first)

        program = replace(installed.program, warm=True)
        recovered = await asyncio.to_thread(program.json, "ledger", "recover")
        assert set(recovered) == {
            "processes",
            "reservations",
            "leased_processes",
            "leased_reservations",
            "lease_ends_in_s",
        }
        for _ in range(300):
            if "held" not in (found := await statuses(scripted)):
                break
            await asyncio.sleep(0.1)
        # Two calls were complete, three were in flight, and the answer of one was just ending.
        assert found.count("settled") in ((3,) if acknowledged else (2, 3))
        assert found.count("unsettled") == 6 - found.count("settled")
        await scripted.balance()
        await is_told_by_report_and_commands(installed, scripted)


async def is_told_by_report_and_commands(
    installed: InstalledProgram, scripted: ScriptedGateway
) -> None:
    unknown = (await statuses(scripted)).count("unsettled")
    told, amounts = await unsettled_and_costs(scripted)
    assert told == unknown
    assert amounts
    assert all(float(amount) > 0 for amount in amounts)
    program = replace(installed.program, warm=True)
    verified = await asyncio.to_thread(program.json, "ledger", "verify")
    assert verified == {"ok": True, "differences": []}
    listed = (await asyncio.to_thread(program.json, "ledger", "unsettled"))["data"]
    mine = [row for row in listed if row["organization_id"] == str(scripted.tenant.organization_id)]
    assert len(mine) == unknown
    resolve = ("ledger", "resolve", mine[0]["id"], "--settle", "0.000001")
    await asyncio.to_thread(program.json, *resolve)
    assert await asyncio.to_thread(program.refusal, *resolve)
    assert (await unsettled_and_costs(scripted))[0] == unknown - 1


async def test_what_a_killed_worker_has_created_can_be_read_again(
    installed: InstalledProgram, served: tuple[Serving, ScriptedGateway]
) -> None:
    """P1: A key whose creation was confirmed still exists with its value, and no key exists twice."""
    installed.upstream.play(chat())
    running, scripted = served
    path = f"/v1/organization/projects/{scripted.tenant.project_id}/api_keys"

    async def create(number: int) -> dict[str, Any] | None:
        headers = {**scripted.tenant.as_admin, "Idempotency-Key": f"creation-{number}"}
        body = {"name": f"key {number}"}
        try:
            found = await scripted.gateway.client.post(path, json=body, headers=headers)
        except httpx2.TransportError:
            return None
        return found.json() if found.status_code == 200 else None

    (worker,) = running.workers()
    creations = [asyncio.ensure_future(create(number)) for number in range(40)]
    await eventually(lambda: any(creation.done() for creation in creations))
    os.kill(worker.pid, signal.SIGKILL)
    told = await asyncio.gather(*creations)
    assert any(told)
    await answers_again(scripted)
    again = await asyncio.gather(*(create(number) for number in range(40)))
    for first, second in zip(told, again, strict=True):
        assert second is not None
        assert first in (None, second)
    keys = await scripted.gateway.services.project_keys.project_key_list(scripted.tenant.project_id)
    assert sorted(key.name for key in keys if key.name.startswith("key ")) == sorted(
        f"key {number}" for number in range(40)
    )


@pytest.mark.smoke
async def test_told_to_stop_every_stream_has_its_end(installed: InstalledProgram) -> None:
    """P2: Streams end within the grace time, normally or with an error record, and all calls are resolved."""
    ending, endless = PausedAnswer(), PausedAnswer()
    verbs = {"ending": ending.verb(), "endless": endless.verb(5), "hang": hang()}
    async with AsyncExitStack() as streams:
        async with installed.serving() as (running, scripted):
            installed.upstream.play(by_user(**verbs, anybody=chat()))
            users = ["ending", "endless"] * 8
            rests = [await open_stream(scripted, streams, user) for user in users]
            hanging = asyncio.ensure_future(scripted.chat(user="hang"))
            await eventually(lambda: installed.upstream.under_way == len(users) + 1)
            stopped_at = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            reading = asyncio.gather(*(rest() for rest in rests))
            await asyncio.sleep(0.5)
            assert await is_cut(scripted.chat(user="anybody"))
            ending.may_end.set()
            texts, silent = await reading, await hanging
            assert time.monotonic() - stopped_at < GRACE_S + 10
            assert await asyncio.to_thread(running.process.wait, 30) == 0
        for user, text in zip(users, texts, strict=True):
            said = read_stream(text)
            assert said.done is (user == "ending")
            if said.error is not None:
                assert said.error["code"] == "service_unavailable"
        assert_error(silent, 503, "service_unavailable")
        assert silent.headers["x-should-retry"] == "false"
        entries = await scripted.entries()
        costs = sorted(entry.cost for entry in entries if entry.status == "settled")
        assert costs == sorted([COST] * 8 + [entries[0].delivered_pieces(5)] * 8)
        assert (await statuses(scripted)).count("unsettled") == 1
        assert len(entries) == 17
        await scripted.balance()


async def test_a_changed_catalogue_under_load(
    installed: InstalledProgram, served: tuple[Serving, ScriptedGateway]
) -> None:
    """SIGHUP: calls in flight continue at their old price, and later calls have the new price."""
    paused = PausedAnswer()
    installed.upstream.play(by_user(open=paused.verb(), anybody=chat()))
    running, first = served
    async with AsyncExitStack() as streams:
        scripted = await first.with_tenant()
        rests = [await open_stream(scripted, streams, "open") for _ in range(12)]
        config = installed.program.config
        before = config.read_text()
        try:
            config.write_text(
                before.replace('"0.0000002"', '"0.0000004"').replace('"0.0000008"', '"0.0000016"')
            )
            await reloaded(running, first, price=2)
        finally:
            config.write_text(before)
            await reloaded(running, first, price=1)
        paused.may_end.set()
        texts = await asyncio.gather(*(rest() for rest in rests))
        assert all(read_stream(text).done for text in texts)
        assert [entry.cost for entry in await scripted.entries()] == [COST] * 12
        await scripted.balance()


async def reloaded(running: Serving, scripted: ScriptedGateway, *, price: int) -> None:
    """Sends SIGHUP and calls until a call costs `price`. Each call succeeds at the old or the new price."""
    running.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(30):
        while True:
            found = await scripted.chat(user="anybody")
            assert found.status_code == 200
            cost = (await scripted.entry_of(found)).cost
            assert cost in (COST, 2 * COST)
            if cost == price * COST:
                return
