"""Tests `costs --csv` and `activity export`, whose output other programs read."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.program import Program, write_config
from tests.support.scripted_gateway import ScriptedGateway, answering_gateway
from tollkeeper.core.money import picousd_from_usd
from tollkeeper.core.runtime.csv_text import csv_lines


@pytest.fixture(scope="module")
async def called(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Yields a gateway whose tenant has made three calls, with their activity records."""
    async with answering_gateway(data_dir, conninfo) as running:
        scripted = await running.with_tenant()
        for _ in range(3):
            assert (await scripted.chat()).status_code == 200
        await scripted.gateway.services.activity.drain()
        yield scripted


@pytest.fixture(scope="module")
def reader(program: Program, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return program.with_config(write_config(tmp_path_factory.mktemp("exports"), data_dir))


async def test_costs_as_csv_are_the_same_numbers(called: ScriptedGateway, reader: Program) -> None:
    organization = str(called.tenant.organization_id)
    line = ("costs", organization, "--group-by", "line_item")
    outcome = await asyncio.to_thread(reader.run, *line, "--csv")
    assert (outcome.code, outcome.err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert set(rows[0]) == {"day", "line_item", "amount_usd"}
    shown = await asyncio.to_thread(reader.json, *line)
    expected = [
        (result["line_item"], result["amount"]["value"])
        for bucket in shown["data"]
        for result in bucket["results"]
    ]
    assert len(rows) == len(expected) > 0
    total = sum(picousd_from_usd(row["amount_usd"]) for row in rows)
    balance = await called.gateway.services.accounts.credit_show(called.tenant.organization_id)
    assert total == balance.settled_picousd


@pytest.mark.parametrize("form", ["csv", "jsonl"])
async def test_activity_is_exported_whole(
    called: ScriptedGateway, reader: Program, form: str
) -> None:
    organization = str(called.tenant.organization_id)
    line = ("activity", "export", "--organization", organization, "--format", form)
    outcome = await asyncio.to_thread(reader.run, *line)
    assert outcome.code == 0, outcome.err
    assert outcome.err == "3 records\n"
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(outcome.out)))
        costs = [row["cost"] for row in rows]
    else:
        rows = [json.loads(text) for text in outcome.out.splitlines()]
        costs = [row["cost"] for row in rows]
    assert len({row["request_id"] for row in rows}) == 3
    balance = await called.gateway.services.accounts.credit_show(called.tenant.organization_id)
    assert sum(map(picousd_from_usd, costs)) == balance.settled_picousd
    assert {row["organization_id"] for row in rows} == {organization}
    assert called.tenant.project_key not in outcome.out


async def test_a_time_without_records(called: ScriptedGateway, reader: Program) -> None:
    line = ("activity", "export", "--since", "2001-01-01", "--until", "2001-01-02")
    outcome = await asyncio.to_thread(reader.run, *line)
    assert (outcome.code, outcome.err) == (0, "0 records\n")
    assert len(outcome.out.splitlines()) == 1


async def test_a_time_that_ends_before_it_begins(reader: Program) -> None:
    line = ("activity", "export", "--since", "2026-02-01", "--until", "2026-01-31")
    refusal = await asyncio.to_thread(reader.refusal, *line)
    assert refusal == "The end of the time is before its beginning."


def test_a_cell_is_never_a_formula() -> None:
    assert csv_lines([["=1+1", "-1.5", "@x", None, 3, 'a"b']]) == '\'=1+1,-1.5,\'@x,,3,"a""b"\n'
