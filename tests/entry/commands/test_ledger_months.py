"""Tests `tollkeeper ledger close`, `export`, `drop` and `reconcile`, which operators run after a month ends."""

import asyncio
import csv
import gzip
import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.activity_records import record_of, rolled_up
from tests.support.books import USD, Books
from tests.support.databases import data_dir_beside, database_url, own_database
from tests.support.ledger import LedgerTenant, make_tenant, running_process
from tests.support.ledger_months import OldBooks, this_month
from tests.support.program import Outcome, Program, write_config

MONTH = this_month().plus(-2)
_BILL = """
[[backends]]
name = "acme"
kind = "openai"
urls = ["http://127.0.0.1:9/v1"]
"""
_COLUMNS = "day=Date,model=Model,cost=Amount"
_NAMED = ("--columns", _COLUMNS, "--model", "acme/large=large-1")


async def _run(program: Program, *line: object) -> Outcome:
    return await asyncio.to_thread(program.run, *map(str, line))


async def _json(program: Program, *line: object) -> Any:
    return await asyncio.to_thread(program.json, *map(str, line))


async def _refusal(program: Program, *line: object) -> str:
    return await asyncio.to_thread(program.refusal, *map(str, line))


@pytest.fixture
async def books_of_the_past(shared_conninfo: str) -> AsyncIterator[tuple[str, OldBooks]]:
    conninfo = own_database(shared_conninfo, f"past_{secrets.token_hex(4)}")
    async with running_process(conninfo) as process:
        old = OldBooks(process)
        await old.begin(MONTH)
        yield conninfo, old


@pytest.fixture
def past(
    program: Program,
    books_of_the_past: tuple[str, OldBooks],
    data_dir: Path,
    tmp_path: Path,
) -> Program:
    conninfo, _ = books_of_the_past
    url, data_dir = database_url(conninfo), data_dir_beside(data_dir, conninfo)
    (tmp_path / "settings").mkdir()
    return program.with_config(write_config(tmp_path / "settings", data_dir, url=url))


async def _fill(old: OldBooks) -> LedgerTenant:
    tenant = await make_tenant(old.process.database, credit=1000)
    for cost in (1, 10, 13):
        await old.spend(tenant, MONTH, 10, cost)
    return tenant


async def test_the_end_of_a_month(
    past: Program, books_of_the_past: tuple[str, OldBooks], tmp_path: Path
) -> None:
    _, old = books_of_the_past
    await _fill(old)
    file, packed = tmp_path / "month.csv", tmp_path / "month.csv.gz"
    refused = await _refusal(past, "ledger", "export", MONTH, "--to", file)
    assert refused == f"The month {MONTH} is not closed. Run `ledger close {MONTH}`."
    assert not file.exists()
    closed = await _json(past, "ledger", "close")
    assert (closed["month"], closed["state"], closed["reservations"]) == (str(MONTH), "closed", 3)
    assert len(closed["digest"]) == 64
    assert await _json(past, "ledger", "verify") == {"ok": True, "differences": []}
    exported = await _json(past, "ledger", "export", MONTH, "--to", packed)
    text = gzip.decompress(packed.read_bytes())
    assert exported["csv_sha256"] == hashlib.sha256(text).hexdigest()
    assert exported["exported_to"] == "month.csv.gz"
    await _json(past, "ledger", "export", MONTH, "--to", file)
    assert file.read_bytes() == text
    assert len(list(csv.reader(text.decode().splitlines()))) == 4
    again = await _refusal(past, "ledger", "export", MONTH, "--to", file)
    assert again == f"{file} exists already."
    names = await asyncio.to_thread(lambda: {path.name for path in tmp_path.glob("*month*")})
    assert names == {"month.csv", "month.csv.gz"}
    asked = await _refusal(past, "ledger", "drop", MONTH)
    assert asked == "Nothing was dropped: confirm the question, or give --yes."
    dropped = await _json(past, "ledger", "drop", MONTH, "--yes")
    assert dropped["state"] == "dropped"
    listed = await _json(past, "ledger", "months")
    assert [(row["month"], row["state"]) for row in listed["data"]][:2] == [
        (str(MONTH), "dropped"),
        (str(this_month()), "open"),
    ]
    # The second export changed nothing.
    entries = (await _json(past, "audit", "list", "--actor", "CLI:"))["data"]
    assert [(entry["operation"], entry["object"]) for entry in reversed(entries)] == [
        ("ledger_close", str(MONTH)),
        ("ledger_exported", str(MONTH)),
        ("ledger_drop", str(MONTH)),
    ]
    assert {entry["organization_id"] for entry in entries} == {None}
    assert entries[1]["after"]["sha256"] == exported["csv_sha256"]
    shown = await _run(past, "ledger", "verify", "--full")
    assert (shown.code, shown.out) == (0, "Every invariant holds.\n")
    # In a pipe, the progress is plain text.
    lines = shown.err.splitlines()
    assert lines[-1].split(" of ")[0] == lines[-1].split(" of ")[1]


async def test_a_month_that_cannot_be_closed(
    past: Program, books_of_the_past: tuple[str, OldBooks]
) -> None:
    _, old = books_of_the_past
    tenant = await make_tenant(old.process.database, credit=1000)
    hold = await old.hold(tenant, MONTH, 1)
    assert f"{hold.id} (held)" in await _refusal(past, "ledger", "close", MONTH)
    wrong = await _refusal(past, "ledger", "close", "September")
    assert wrong == "A month is written YYYY-MM, as in 2026-09: September"


@pytest.fixture
def billed(operator: Program, tmp_path: Path) -> Program:
    config = tmp_path / "tollkeeper.toml"
    config.write_text(operator.config.read_text() + _BILL)
    return operator.with_config(config)


async def test_a_bill_beside_the_books(billed: Program, books: Books, tmp_path: Path) -> None:
    # The day is random, because other tests use the same backend.
    day = 30_000 + secrets.randbelow(30_000)
    record = record_of(
        books,
        settlement="settled",
        cost_picousd=USD,
        backend="acme",
        model="acme/large",
        started_at_ms=day * 86_400_000,
    )
    await rolled_up(books, record)
    [[shown]] = await books.sql("SELECT (date '1970-01-01' + %s)::text", day)
    file = tmp_path / "bill.csv"
    file.write_text(f"Date,Model,Amount,Out\n{shown},large-1,1.00,20\n")
    assert await _json(billed, "ledger", "reconcile", "acme", file, *_NAMED) == {
        "ok": True,
        "backend": "acme",
        "since": shown,
        "until": shown,
        "compared": 1,
        "differences": [],
        "totals": {"cost": {"bill": "1", "ledger": "1", "difference": "0", "differs": False}},
    }
    file.write_text(f"Date,Model,Amount,Out\n{shown},large-1,1.01,21\n{shown},tiny,0.5,1\n")
    columns = ("--columns", f"{_COLUMNS},output_tokens=Out", *_NAMED[2:])
    line = ("ledger", "reconcile", "acme", file, *columns)
    outcome = await _run(billed, *line, "--json")
    assert outcome.code == 1
    assert outcome.err == "tollkeeper: The bill and the ledger differ in 2 places.\n"
    first, second = json.loads(outcome.out)["differences"]
    assert (first["kind"], second["kind"]) == ("differs", "missing in the ledger")
    assert first["figures"]["cost"]["difference"] == "0.01"
    assert first["figures"]["output_tokens"] == {
        "bill": "21",
        "ledger": "20",
        "difference": "1",
        "differs": True,
    }
    table = await _run(billed, *line)
    assert "missing in the ledger" in table.out
    within = await _run(billed, *line, "--tolerance", "5%", "--json")
    assert [found["model"] for found in json.loads(within.out)["differences"]] == ["tiny"]


async def test_a_bill_that_cannot_be_read(billed: Program, tmp_path: Path) -> None:
    file = tmp_path / "bill.csv"
    file.write_text("Date,Model,Amount\n2026-09-01,large-1,much\n")
    line = ("ledger", "reconcile", "acme", file)
    refused = await _refusal(billed, *line, *_NAMED)
    assert refused == "Line 2 column Amount: 'much' is not an amount in USD."
    refused = await _refusal(billed, *line, "--columns", "day=Date")
    assert refused.startswith("Name the columns of the file for day, model and")
    refused = await _refusal(billed, *line, "--columns", "money=Amount")
    assert refused == "money is not a figure that can be compared."
    assert "bill.csv" in await _refusal(billed, *line[:3], tmp_path / "no" / "bill.csv", *_NAMED)
    for wrong in (
        (),
        ("--columns", "cost"),
        (*_NAMED, "--tolerance", "much"),
        (*_NAMED, "--tolerance", "0.²"),
        (*_NAMED, "--since", "x"),
    ):
        assert (await _run(billed, *line, *wrong)).code == 2
