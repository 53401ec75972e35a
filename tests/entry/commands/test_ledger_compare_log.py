"""Tests that `tollkeeper ledger compare-log` finds calls that the ledger lacks, and books each of them once."""

import asyncio
import gzip
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from tests.support.books import MODEL, USD, Books
from tests.support.gateway import Gateway
from tests.support.program import Outcome, Program, eventually
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.months import request_id
from tollkeeper.core.runtime.request_log import RequestLine, json_lines
from tollkeeper.money.caps.rule import CapPeriod

_COMPARE = ("ledger", "compare-log")
_DAY_MS = 86_400_000


def _line(
    books: Books, identity: UUID, cost: int | None, *, settlement: str = "settled", **fields: Any
) -> bytes:
    """Returns a line of the request log as a gateway writes it."""
    written = RequestLine(
        request_id=str(identity),
        operation="create_chat_completion",
        status=200,
        duration_ms=5,
        model=MODEL,
        cost_usd=None if cost is None else usd_from_picousd(cost),
        settlement=settlement,
        organization_id=books.organization,
        project_id=books.project,
        api_key_id=books.key,
        **{
            "event": "request",
            "level": "info",
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
            **fields,
        },
    )
    line: bytes = json_lines([written])
    return line


def _lost(books: Books) -> UUID:
    """Returns the id of a call that is not in the ledger."""
    return books.hold_of(1).id


def _log(folder: Path, *lines: bytes, name: str = "gateway.log") -> Path:
    file = folder / name
    file.write_bytes(b"".join(lines))
    return file


async def _run(operator: Program, *line: object) -> Outcome:
    return await asyncio.to_thread(operator.run, *_COMPARE, *map(str, line))


async def _json(operator: Program, *line: object) -> Any:
    done = await _run(operator, *line, "--json")
    assert done.out, done.err
    found = json.loads(done.out)
    assert done.code == (0 if found["ok"] else 1), done
    return found


async def test_what_is_missing_is_found_and_booked_once(
    operator: Program, books: Books, tmp_path: Path
) -> None:
    there = await books.spend(3 * USD, 2 * USD)
    lost = [_lost(books), _lost(books)]
    lines = [
        _line(books, there.id, 2 * USD),
        _line(books, lost[0], 5 * USD),
        b'{"event":"alert raised","level":"info"}\n',
        _line(books, lost[1], 7),
        _line(books, _lost(books), None, settlement="released"),
        _line(books, _lost(books), None, settlement="none", error="rate_limited"),
    ]
    file = _log(tmp_path, *lines)
    found = await _json(operator, file)
    assert (found["ok"], found["calls"], found["other_lines"]) == (False, 3, 3)
    assert {one["request_id"]: one["problem"] for one in found["differences"]} == {
        str(identity): "missing" for identity in lost
    }
    assert (await books.balance())["settled"] == 2 * USD
    booked = await _json(operator, file, "--book")
    assert (booked["ok"], booked["booked"], booked["booked_usd"]) == (True, 2, "5.000000000007")
    balance = await books.balance()
    assert balance["settled"] == 7 * USD + 7
    assert balance["available"] == 93 * USD - 7
    assert balance["held"] == balance["unsettled"] == 0
    again = await _json(operator, file, "--book")
    assert (again["ok"], again["booked"], again["differences"]) == (True, 0, [])
    await books.assert_right()
    audit = await books.services.audit.audit_list(organization_id=books.organization, limit=1)
    (entry,) = audit.entries
    assert entry.change.operation == "ledger_compare_log"
    assert entry.change.after == {"settled": 2, "cost": "5.000000000007", "unsettled": 0}


async def test_a_call_whose_end_was_lost_is_settled_at_its_cost(
    operator: Program, books: Books, tmp_path: Path
) -> None:
    held, marked = await books.hold(3 * USD), await books.hold(4 * USD)
    await books.leave_unsettled(marked)
    file = _log(tmp_path, _line(books, held.id, USD), _line(books, marked.id, 5 * USD))
    found = await _json(operator, file)
    assert [one["problem"] for one in found["differences"]] == ["not_settled"] * 2
    assert [one["ledger_settlement"] for one in found["differences"]] == ["held", "unsettled"]
    assert (await _json(operator, file, "--book"))["booked"] == 2
    balance = await books.balance()
    assert balance["settled"] == 6 * USD
    assert balance["held"] == balance["unsettled"] == 0
    await books.assert_right()


async def test_a_call_of_unknown_cost_becomes_unsettled(
    operator: Program, books: Books, tmp_path: Path
) -> None:
    lost, settled_since = _lost(books), await books.spend(USD, USD)
    file = _log(
        tmp_path,
        _line(books, lost, None, settlement="unsettled"),
        _line(books, settled_since.id, None, settlement="unsettled"),
    )
    assert (await _json(operator, file, "--book"))["booked"] == 1
    assert (await _json(operator, file))["ok"]
    entry = await books.services.reconciliation.ledger_resolve(
        lost, settle_picousd=USD, confirmed=True
    )
    assert entry.reason is not None
    assert "the database has lost the call" in entry.reason
    await books.assert_right()


async def test_another_cost_is_reported_and_not_changed(
    operator: Program, books: Books, tmp_path: Path
) -> None:
    dearer, free = await books.spend(3 * USD, 2 * USD), await books.hold(USD)
    await books.release(free)
    file = _log(tmp_path, _line(books, dearer.id, USD), _line(books, free.id, USD))
    found = await _json(operator, file, "--book")
    assert (found["ok"], found["booked"]) == (False, 0)
    costs = [
        (one["problem"], one["logged_cost"], one["ledger_cost"]) for one in found["differences"]
    ]
    assert costs == [("other_cost", "1", "2"), ("other_cost", "1", "0")]
    assert (await books.balance())["settled"] == 2 * USD


async def test_the_cost_lies_on_the_day_of_the_call(
    operator: Program, books: Books, tmp_path: Path
) -> None:
    """So it counts in yesterday's daily cap, not in today's."""
    await books.services.caps.cap_set(books.organization, 50 * USD, CapPeriod.DAY)
    await books.services.caps.cap_set(books.organization, 50 * USD, CapPeriod.TOTAL)
    now_ms = int(time.time() * 1000)
    yesterday = request_id(now_ms - _DAY_MS, uuid4().int)
    file = _log(tmp_path, _line(books, yesterday, 5 * USD))
    assert (await _json(operator, file, "--book"))["booked"] == 1
    rows = await books.sql(
        "SELECT day, line_item, amount_picousd FROM cost_rollup WHERE organization_id = %s",
        books.organization,
    )
    assert rows == [((now_ms - _DAY_MS) // _DAY_MS, f"{MODEL}, other", 5 * USD)]
    [today, total] = await books.services.caps.cap_show(books.organization)
    assert (today.spent_picousd, total.spent_picousd) == (0, 5 * USD)
    await books.assert_right()


async def test_a_call_of_another_database_is_not_booked(
    operator: Program, books: Books, books_gateway: Gateway, tmp_path: Path
) -> None:
    """A call whose key belongs to another tenant is not booked either."""
    other = await books_gateway.make_tenant()
    stranger = replace(books, organization=OrganizationId(uuid4()))
    crossed = replace(books, organization=other.organization_id)
    file = _log(tmp_path, _line(stranger, _lost(books), USD), _line(crossed, _lost(books), USD))
    found = await _json(operator, file, "--book")
    assert (found["ok"], found["booked"]) == (False, 0)
    assert [one["problem"] for one in found["differences"]] == ["unknown_key"] * 2
    await books.assert_right()


async def test_two_operators_book_once(operator: Program, books: Books, tmp_path: Path) -> None:
    lost = [_lost(books) for _ in range(600)]
    file = _log(tmp_path, *(_line(books, identity, 1) for identity in lost))
    packed = tmp_path / "gateway.log.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    found = await asyncio.gather(*(_json(operator, file, packed, "--book") for _ in range(3)))
    assert sum(one["booked"] for one in found) == 600
    assert all(one["ok"] for one in found)
    assert (await books.balance())["settled"] == 600
    await books.assert_right()


async def test_broken_lines_are_named_and_the_others_are_booked(
    operator: Program, books: Books, tmp_path: Path
) -> None:
    good = _line(books, _lost(books), USD)
    broken = [
        good[: len(good) // 2] + b"\n",
        b"12:00:01  create_chat_completion  200  5 ms\n",
        b"\xff\xfe\n",
        b"[" * 50_000 + b"\n",
        b'{"event":"request","x":"' + b"x" * 200_000 + b'"}\n',
        _line(books, uuid4(), USD),
        _line(books, _lost(books), USD).replace(b'"cost_usd":"1"', b'"cost_usd":"-1"'),
        _line(books, _lost(books), USD).replace(b'"cost_usd":"1"', b'"cost_usd":"1.0000000000001"'),
        _line(books, _lost(books), USD).replace(b'"cost_usd":"1",', b""),
        _line(books, _lost(books), USD).replace(MODEL.encode(), b"a\\u0000b"),
    ]
    file = _log(tmp_path, *broken, b"\n", good, good[:40])
    found = await _json(operator, file, "--book")
    assert (found["ok"], found["booked"]) == (False, 1)
    assert found["unreadable_lines"] == len(broken) + 1
    assert found["unreadable"][0].startswith(f"{file}, line 1: ")
    assert (await books.balance())["settled"] == USD
    shown = await _run(operator, file)
    assert shown.code == 1
    assert shown.err.endswith(
        "0 calls of the log differ from the ledger, and 11 lines cannot be read.\n"
    )
    await books.assert_right()


@pytest.mark.parametrize("options", [(), ("--json",)])
async def test_everything_that_a_gateway_prints_can_be_read(
    operator: Program, tmp_path: Path, options: tuple[str, ...]
) -> None:
    log = tmp_path / "gateway.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *operator.line("serve", *options),
            cwd=operator.folder,
            env=operator.process_environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        await asyncio.to_thread(eventually, lambda: b"\n" in log.read_bytes())
        # A line of the log may come before the addresses.
        await asyncio.to_thread(eventually, lambda: b'"public"' in log.read_bytes())
        [printed] = [line for line in log.read_bytes().splitlines() if b'"public"' in line]
        address = json.loads(printed)["public"]
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"{address}/v1/models/absent")).status_code == 401
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    found = await _json(operator, log)
    assert found["ok"], found["unreadable"]
    assert found["other_lines"] == len(log.read_bytes().splitlines()) >= 3


async def test_a_damaged_archive_is_compared_as_far_as_it_goes(
    operator: Program, books: Books, tmp_path: Path
) -> None:
    lines = [_line(books, _lost(books), 1) for _ in range(2000)]
    packed = tmp_path / "gateway.log.gz"
    packed.write_bytes(gzip.compress(b"".join(lines))[:-20_000])
    found = await _json(operator, packed, "--book")
    assert 0 < found["booked"] < len(lines)
    assert found["unreadable_lines"] == 1
    assert "the archive is damaged" in found["unreadable"][0]
    assert (await books.balance())["settled"] == found["booked"]


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"", "The files have no line of a request log in JSON."),
        (b"12:00:01  chat  200\n", "The files have no line of a request log in JSON. "),
    ],
)
def test_a_file_that_is_no_log(
    operator: Program, tmp_path: Path, content: bytes, refusal: str
) -> None:
    assert operator.refusal(*_COMPARE, str(_log(tmp_path, content)), "--json").startswith(refusal)


def test_a_file_that_is_not_there(operator: Program, tmp_path: Path) -> None:
    file = tmp_path / "gateway.log"
    assert operator.refusal(*_COMPARE, str(file), "--json") == f"{file}: No such file or directory."


async def test_people_see_what_differs(operator: Program, books: Books, tmp_path: Path) -> None:
    lost = _lost(books)
    file = _log(tmp_path, _line(books, lost, USD))
    shown = await _run(operator, file)
    assert str(lost) in shown.out
    assert "is not in the ledger" in shown.out
    assert "Nothing was booked: --book books calls that are missing or not settled.\n" in shown.out
    booked = await _run(operator, file, "--book")
    assert booked.code == 0
    assert "1 calls were booked, 1 USD in total.\n" in booked.out
