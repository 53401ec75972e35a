"""Tests the operator's commands for money and activity, with output for programs and for people."""

import asyncio
import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support import stripe_events
from tests.support.activity_records import VERDICT, record_of, written
from tests.support.backend_calls import MODEL as CATALOG_MODEL
from tests.support.books import MODEL, USD, Books
from tests.support.program import Outcome, Program
from tests.support.terminal import run_on_terminal
from tollkeeper.core.usage import Usage
from tollkeeper.database.processes import LEASE_S
from tollkeeper.money.payments.stripe_events import read_event
from tollkeeper.money.unsettled.recovery import Lease


async def _json(operator: Program, *line: object) -> Any:
    """Runs the command in a thread, so that the event loop of `books` continues to run."""
    return await asyncio.to_thread(operator.json, *map(str, line))


async def _run(operator: Program, *line: object) -> Outcome:
    return await asyncio.to_thread(operator.run, *map(str, line))


async def _refusal(operator: Program, *line: object) -> str:
    return await asyncio.to_thread(operator.refusal, *map(str, line))


async def test_credit(operator: Program, books: Books) -> None:
    await books.spend(10 * USD, USD + 1)
    await books.hold(2 * USD)
    await books.leave_unsettled(await books.hold(3 * USD))
    expected = {
        "organization_id": str(books.organization),
        "granted": "100",
        "available": "93.999999999999",
        "held": "2",
        "settled": "1.000000000001",
        "unsettled": "3",
    }
    assert await _json(operator, "credit", "show", books.organization) == expected
    granted = await _json(
        operator, "credit", "grant", books.organization, "0.000000000001", "--note", "a crumb"
    )
    assert granted.pop("id")
    assert (granted.pop("amount"), granted.pop("note")) == ("0.000000000001", "a crumb")
    assert granted.pop("kind") == "grant"
    assert granted == {**expected, "granted": "100.000000000001", "available": "94"}
    withdrawn = await _json(operator, "credit", "grant", books.organization, "-94")
    assert (withdrawn["amount"], withdrawn["available"]) == ("-94", "0")
    assert await _refusal(operator, "credit", "grant", books.organization, "-0.5") == (
        "0.5 USD cannot be withdrawn: 0 USD is available."
    )


async def test_kinds_of_credit(operator: Program, books: Books) -> None:
    organization = books.organization
    paid = await _json(operator, "credit", "grant", organization, "5", "--kind", "payment")
    assert (paid["kind"], paid["amount"]) == ("payment", "5")
    back = await _json(operator, "credit", "withdraw", organization, "2", "--note", "sorry")
    assert (back["kind"], back["amount"], back["available"]) == ("withdrawal", "-2", "103")
    assert "is of the kind" in await _refusal(
        operator, "credit", "withdraw", organization, "2", "--kind", "payment"
    )
    listed = (await _json(operator, "credit", "list", organization, "--limit", 2))["data"]
    assert [(row["kind"], row["amount"], row["note"], row["payment_id"]) for row in listed] == [
        ("withdrawal", "-2", "sorry", None),
        ("payment", "5", "", None),
    ]


async def test_payment_events_are_listed_and_assigned(operator: Program, books: Books) -> None:
    payment = stripe_events.new_payment()
    event = read_event(stripe_events.succeeded(payment, 1050, "nobody"))
    await books.services.payments.payment_receive(event)
    listed = (await _json(operator, "credit", "events", "--open", "--limit", 1000))["data"]
    [found] = [row for row in listed if row["id"] == event.id]
    assert (found["outcome"], found["payment_id"]) == ("unknown_organization", payment)
    assert found["paid"] == "10.5"
    assert "'nobody'" in found["detail"]
    assigned = await _json(operator, "credit", "assign", payment, books.organization)
    assert assigned == {
        "payment_id": payment,
        "organization_id": str(books.organization),
        "paid": "10.5",
        "withdrawn": "0",
    }
    listed = (await _json(operator, "credit", "events", "--limit", 1000))["data"]
    [found] = [row for row in listed if row["id"] == event.id]
    assert (found["outcome"], found["organization_id"]) == ("booked", str(books.organization))


async def test_a_statement(operator: Program, books: Books) -> None:
    await books.spend(10 * USD, USD + 1)
    await books.leave_unsettled(await books.hold(3 * USD))
    found = await _json(operator, "statement", books.organization)
    assert (found["opening_balance"], found["closing_balance"]) == ("0", "98.999999999999")
    assert found["grants"] == [{"kind": "grant", "count": 1, "amount": "100"}]
    [charge] = found["charges"]
    assert (charge["model"], charge["amount"]) == (MODEL, "1.000000000001")
    assert found["unsettled"] == {"calls": 1, "held": "3"}
    month = f"{datetime.now(UTC):%Y-%m}"
    assert (found["month"], found["final"], found["adjustments"]) == (month, False, [])
    text = (await _run(operator, "statement", books.organization, "--csv")).out
    assert text.splitlines()[0] == "entry,project_id,project,model,detail,amount_usd"
    assert "closing balance,,,,,98.999999999999" in text.splitlines()
    shown = (await _run(operator, "statement", books.organization, "--month", month)).out
    assert "98.999999999999" in shown
    assert "A month is written YYYY-MM" in await _refusal(
        operator, "statement", books.organization, "--month", "10/2026"
    )


async def test_overage(operator: Program, books: Books) -> None:
    organization = books.organization
    shown = {
        "organization_id": str(organization),
        "balance": "100",
        "overage": "0",
        "bound": "10",
        "source": "default",
        "stopped": False,
    }
    assert await _json(operator, "overage", "show", organization) == shown
    changed = await _json(operator, "overage", "set", organization, "0.5")
    assert changed == {**shown, "bound": "0.5", "source": "organization"}
    await books.spend(100 * USD, 101 * USD)
    await books.try_hold(0)
    owing = await _json(operator, "overage", "show", organization)
    assert owing == {**changed, "balance": "-1", "overage": "1", "stopped": True}
    assert "grant credit or set another bound first" in await _refusal(
        operator, "overage", "clear", organization
    )
    await _json(operator, "overage", "set", organization, "default")
    cleared = await _json(operator, "overage", "clear", organization)
    assert cleared == {**shown, "balance": "-1", "overage": "1"}
    assert (await _run(operator, "overage", "set", organization, "much")).code == 2


async def test_models_that_exceed_their_holds(operator: Program, books: Books) -> None:
    await books.sql(
        "INSERT INTO observed_excesses VALUES ('example/new', 'b', '2026-11-01', %s, %s, now())",
        2 * USD,
        5 * USD,
    )
    listed = await _json(operator, "overage", "models")
    [row] = [row for row in listed["data"] if row["model"] == "example/new"]
    assert row.pop("observed_at") > 1_700_000_000
    assert row == {
        "model": "example/new",
        "backend": "b",
        "reason": "observed",
        "hold": "2",
        "cost": "5",
        "expected": "150 %",
    }
    await _json(operator, "overage", "forget", "example/new")
    assert "has exceeded its hold lately" in await _refusal(
        operator, "overage", "forget", "example/new"
    )


async def _lines(operator: Program, *line: object) -> list[str]:
    outcome = await _run(operator, *line)
    assert outcome.code == 0, outcome.err
    return [row for row in outcome.out.splitlines() if row.strip()]


@pytest.mark.parametrize("amount", ["abc", "1e3", "0.0000000000001", "--nonsense", ""])
async def test_an_amount_is_a_decimal(operator: Program, books: Books, amount: str) -> None:
    outcome = await _run(operator, "credit", "grant", books.organization, amount)
    assert (outcome.code, outcome.out) == (2, "")


async def test_caps(operator: Program, books: Books) -> None:
    await books.spend(USD, USD)
    organization = books.organization
    own = await _json(operator, "cap", "set", organization, "10", "--period", "month")
    assert own == {
        "organization_id": str(organization),
        "project_id": None,
        "project": None,
        "key_id": None,
        "key": None,
        "amount": "10",
        "period": "month",
        "held": "0",
        "spent": "1",
        "remaining": "9",
        "resets_at": own["resets_at"],
    }
    assert 0 < own["resets_at"] - time.time() <= 31 * 86_400 + 60
    line = ("cap", "set", organization, "0.5", "--period", "total", "--project", books.project)
    of_project = await _json(operator, *line)
    assert (of_project["project_id"], of_project["remaining"]) == (str(books.project), "-0.5")
    assert await _json(operator, "cap", "show", organization) == {"data": [own, of_project]}
    cleared = await _json(operator, "cap", "clear", organization)
    assert (cleared["amount"], cleared["period"]) == (None, None)
    assert await _json(operator, "cap", "show", organization) == {"data": [of_project]}
    assert (await _run(operator, "cap", "set", organization, "1")).code == 2
    assert (await _run(operator, "cap", "set", organization, "1", "--period", "year")).code == 2


async def test_caps_by_day_week_and_month(operator: Program, books: Books) -> None:
    await books.spend(USD, USD)
    organization, key = books.organization, str(books.key)
    day = await _json(operator, "cap", "set", organization, "10", "--period", "day", "--key", key)
    assert (day["project_id"], day["key_id"]) == (str(books.project), key)
    assert (day["period"], day["spent"], day["remaining"]) == ("day", "1", "9")
    assert 0 < day["resets_at"] - time.time() <= 86_400 + 60
    line = ("cap", "set", organization, "20", "--period", "week", "--project", books.project)
    week = await _json(operator, *line)
    assert (week["project_id"], week["key_id"], week["period"]) == (
        str(books.project),
        None,
        "week",
    )
    own = await _json(operator, "cap", "set", organization, "30", "--period", "month")
    assert await _json(operator, "cap", "show", organization) == {"data": [own, week, day]}
    header, *rows = (await _run(operator, "cap", "show", organization)).out.splitlines()
    assert header.split("\t")[:2] == ["project", "key"]
    assert [row.split("\t")[:2] for row in rows] == [
        ["-", "-"],
        ["Acme project", "-"],
        ["Acme project", "app"],
    ]
    month = await _json(
        operator, "cap", "set", organization, "9", "--period", "month", "--key", key
    )
    cleared = await _json(operator, "cap", "clear", organization, "--key", key, "--period", "day")
    assert (cleared["key_id"], cleared["period"]) == (key, "day")
    assert await _json(operator, "cap", "show", organization) == {"data": [own, week, month]}
    await _json(operator, "cap", "clear", organization, "--key", key)
    await _json(operator, "cap", "clear", organization, "--project", books.project)
    assert await _json(operator, "cap", "show", organization) == {"data": [own]}
    both = ("--key", key, "--project", books.project)
    wrong = await _run(operator, "cap", "set", organization, "1", "--period", "day", *both)
    assert wrong.code == 2
    # One owner can have all of them at once.
    for period in ("day", "week", "month", "total"):
        await _json(operator, "cap", "set", organization, "7", "--period", period)
    of_all = (await _json(operator, "cap", "show", organization))["data"]
    assert [cap["period"] for cap in of_all] == ["day", "week", "month", "total"]
    unknown = ("cap", "set", organization, "1", "--period", "day", "--key", str(uuid4()))
    assert (await _run(operator, *unknown)).code == 1


async def test_limits(operator: Program, books: Books) -> None:
    assert await _json(operator, "limit", "show", books.project) == {
        "project_id": str(books.project),
        "requests_per_minute": 6000,
        "concurrency": 256,
        "live_holds": 0,
        "source": {"requests_per_minute": "default", "concurrency": "default"},
    }
    found = await _json(operator, "limit", "set", books.project, "--requests-per-minute", "60")
    assert (found["requests_per_minute"], found["concurrency"]) == (60, 256)
    assert found["source"] == {"requests_per_minute": "project", "concurrency": "default"}
    line = ("--concurrency", "4", "--requests-per-minute", "default")
    found = await _json(operator, "limit", "set", books.project, *line)
    assert (found["requests_per_minute"], found["concurrency"]) == (6000, 4)
    assert (await _run(operator, "limit", "set", books.project)).code == 2
    assert (await _run(operator, "limit", "set", books.project, "--concurrency", "x")).code == 2
    assert "from 1" in await _refusal(operator, "limit", "set", books.project, "--concurrency=0")


async def test_costs(operator: Program, books: Books) -> None:
    await books.spend(5 * USD, 3 * USD)
    await books.leave_unsettled(await books.hold(USD))
    report = await _json(operator, "costs", books.organization, "--group-by", "line_item")
    assert len(report["data"]) == 7
    assert (report["has_more"], report["unsettled_requests"]) == (False, 1)
    (result,) = report["data"][-1]["results"]
    assert result["amount"] == {"value": "3", "currency": "usd"}
    assert result["line_item"] == f"{MODEL}, request"
    outcome = await _run(operator, "costs", books.organization, "--group-by", "project_id")
    assert outcome.code == 0
    assert "Acme project" in outcome.out
    assert str(books.project) not in outcome.out
    assert "█" not in outcome.out
    assert "1 calls of these days are unsettled" in outcome.out
    line = ("costs", str(books.organization), "--group-by", "project_id")
    drawn = await asyncio.to_thread(run_on_terminal, operator, *line)
    assert "█" * 50 in drawn.out
    # The command reads a long range in several pages and shows one report.
    long = ("--since", "2020-01-01", "--until", "2020-12-31")
    report = await _json(operator, "costs", books.organization, *long)
    assert len(report["data"]) == 365
    assert (report["next_page"], report["unsettled_requests"]) == (None, 0)
    assert (await _run(operator, "costs", books.organization, "--since", "soon")).code == 2
    too_long = await _run(operator, "costs", books.organization, "--since", "2000-01-01")
    assert (too_long.code, "at most 3660 days" in too_long.err) == (2, True)
    backwards = ("--since", "2026-02-01", "--until", "2026-01-31")
    refusal = await _refusal(operator, "costs", books.organization, *backwards)
    assert refusal == "The end of the time is before its beginning."


async def test_costs_of_the_judge(operator: Program, books: Books) -> None:
    judge = replace(CATALOG_MODEL, backend="judges", upstream_model="small-1")
    costs = books.services.judge_costs
    costs.note(books.organization, judge, Usage(1200, 1, cached_tokens=1000), 0)
    costs.note(books.organization, judge, Usage(34, 1), 0)
    costs.note(books.organization, judge, None, 0)
    await costs.write()
    report = await _json(operator, "costs", books.organization)
    assert report["judge"] == [
        {
            "backend": "judges",
            "model": "small-1",
            "questions": 3,
            "unreported_questions": 1,
            "input_tokens": 1234,
            "cached_tokens": 1000,
            "output_tokens": 2,
            "cost_usd": "0",
        }
    ]
    shown = (await _run(operator, "costs", books.organization)).out
    assert "1,234" in shown
    assert "no token counts for 1 questions" in shown


async def test_costs_are_what_the_help_says(operator: Program, books: Books) -> None:
    await books.spend(5 * USD, 3 * USD)
    second = await books.second_project()
    await second.spend(5 * USD, 2 * USD)
    said = " ".join((await _run(operator, "costs", "--help")).out.replace("│", "").split())
    assert "A chart shows the total of each day" in said
    assert "a table before the chart splits the total of each day" in said
    assert "six days before the end" in said
    today = datetime.now(UTC).date()
    days = [str(today - timedelta(days=back)) for back in range(6, -1, -1)]
    plain = [line.split() for line in await _lines(operator, "costs", books.organization)]
    assert [line[0] for line in plain if line[0].startswith("20")] == days
    assert plain[-1] == ["total", "5"]
    split = [
        line.split("\t")
        for line in await _lines(
            operator,
            "costs",
            books.organization,
            "--group-by",
            "project_id",
            "--group-by",
            "api_key_id",
        )
    ]
    assert split[0] == ["day", "project", "key", "USD"]
    assert sorted(split[1:3]) == [
        [days[-1], "Acme project", "app", "3"],
        [days[-1], "second", "second", "2"],
    ]
    assert split[3] == ["day", "USD"]
    assert [line[0] for line in split[4:] if line[0].startswith("20")] == days


async def test_the_readme_shows_what_costs_prints(operator: Program, books: Books) -> None:
    """Except for the rows of days, the lines of the README's example begin like the output's lines."""
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    example = readme.partition("--group-by line_item\n")[2].partition("```")[0]
    await books.spend(5 * USD, 3 * USD)
    line = ("costs", str(books.organization), "--group-by", "line_item")
    drawn = (await asyncio.to_thread(run_on_terminal, operator, *line)).out
    # The spinner and its text are drawn before the tables.
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", drawn[drawn.index("day ") :])

    def shape(lines: list[str]) -> list[str]:
        """Returns the beginning of each line. Leaves out the rows of days, because they vary."""
        words = [line.split()[0][:3] for line in lines if line.strip()]
        return [word for word in words if not word.startswith("20")]

    assert shape(example.splitlines()) == shape(shown.splitlines())
    assert "█" * 50 in example


async def test_things_with_one_name_are_told_apart(operator: Program, books: Books) -> None:
    second = await books.second_project()
    await books.services.project_keys.project_key_rename(second.key, "app")
    await books.spend(5 * USD, 3 * USD)
    await second.spend(5 * USD, 2 * USD)
    shown = await _run(operator, "costs", books.organization, "--group-by", "api_key_id")
    for key in (books.key, second.key):
        assert f"app ({str(key)[:8]})" in shown.out


async def test_ledger_verify(operator: Program, books: Books) -> None:
    assert await _json(operator, "ledger", "verify") == {"ok": True, "differences": []}
    assert (await _run(operator, "ledger", "verify")).out == "Every invariant holds.\n"
    change = "UPDATE accounts SET overage = overage + %s WHERE organization_id = %s"
    await books.sql(change, 1, books.organization)
    outcome = await _run(operator, "ledger", "verify", "--json")
    shown = await _run(operator, "ledger", "verify")
    await books.sql(change, -1, books.organization)
    assert outcome.code == shown.code == 1
    document = json.loads(outcome.out)
    assert document["ok"] is False
    (difference,) = document["differences"]
    assert difference["subject"] == str(books.organization)
    assert set(difference) == {"invariant", "subject", "detail"}
    assert outcome.err == "tollkeeper: The ledger is wrong in 1 places.\n"
    assert str(books.organization) in shown.out


async def test_ledger_resolve(operator: Program, books: Books) -> None:
    hold = await books.hold(5 * USD)
    assert "is held" in await _refusal(operator, "ledger", "resolve", hold.id, "--release")
    await books.leave_unsettled(hold, "silence")
    listed = await _json(operator, "ledger", "unsettled")
    (entry,) = (found for found in listed["data"] if found["id"] == str(hold.id))
    assert (entry["hold"], entry["cost"], entry["reason"]) == ("5", None, "silence")
    for wrong in ((), ("--release", "--settle", "1"), ("--settle", "much")):
        assert (await _run(operator, "ledger", "resolve", hold.id, *wrong)).code == 2
    asked = await _refusal(operator, "ledger", "resolve", hold.id, "--settle", "10.01")
    assert asked.startswith(f"10.01 USD for the reservation {hold.id} is more than twice its hold")
    assert asked.endswith(f"`tollkeeper ledger resolve {hold.id} --settle 10.01 --yes`.")
    resolved = await _json(operator, "ledger", "resolve", hold.id, "--settle", "0.25")
    assert (resolved["settlement"], resolved["cost"]) == ("settled", "0.25")
    again = await _refusal(operator, "ledger", "resolve", hold.id, "--settle", "0.25")
    assert again == f"The reservation {hold.id} was settled already, by operator."
    await books.assert_right()


async def test_far_more_than_the_hold_is_settled_with_yes(operator: Program, books: Books) -> None:
    hold = await books.hold(USD)
    await books.leave_unsettled(hold)
    line = ("ledger", "resolve", hold.id, "--settle", "10")
    assert "Confirm it" in await _refusal(operator, *line)
    resolved = await _json(operator, *line, "--yes")
    assert (resolved["settlement"], resolved["cost"]) == ("settled", "10")
    await books.assert_right()


async def test_ledger_recover(operator: Program, books: Books) -> None:
    """The hold of a dead process becomes unsettled; the hold of a process with a valid lease stays."""
    dead, alive = uuid4(), uuid4()
    lost, running = await books.hold(2 * USD), await books.hold(3 * USD)
    move = "UPDATE reservations SET process_id = %s WHERE id = %s"
    await books.sql(move, dead, lost.id)
    await books.sql(move, alive, running.id)
    await books.sql(
        "INSERT INTO processes (id, started_at, heartbeat_at) VALUES (%s, %s, %s)",
        dead,
        "2020-01-01 00:00 UTC",
        "2020-01-01 00:01 UTC",
    )
    living = asyncio.create_task(_prove_life(Lease(books.services.database, alive, 1)))
    found = await _json(operator, "ledger", "recover")
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    assert set(found) == {
        "processes",
        "reservations",
        "leased_processes",
        "leased_reservations",
        "lease_ends_in_s",
    }
    assert found["leased_reservations"] >= 1
    assert 0 < found["lease_ends_in_s"] <= LEASE_S
    assert found["processes"] >= 1
    balance = await books.balance()
    assert (balance["unsettled"], balance["held"]) == (2 * USD, 3 * USD)
    await books.release(running)
    await books.sql("DELETE FROM processes WHERE id = %s", alive)
    await books.assert_right()


async def _prove_life(lease: Lease) -> None:
    while True:
        await lease.heartbeat()
        await asyncio.sleep(lease.interval_s)


async def test_activity(operator: Program, books: Books) -> None:
    hold = await books.spend(5 * USD, 2 * USD)
    record = record_of(books, request_id=str(hold.id), hold_picousd=5 * USD, settlement="settled")
    await written(books.services.activity, record)
    shown = await _json(operator, "activity", "show", hold.id)
    assert (shown["status"], shown["settlement"]) == (200, "settled")
    assert (shown["hold"], shown["cost"]) == ("5", "2")
    assert (shown["backend"], shown["replica"]) == ("cluster", "http://10.0.0.5:8000/v1")
    assert shown["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "total_tokens": 30,
        "cached_tokens": 3,
        "reasoning_tokens": 4,
        "cache_write_tokens": 0,
        "web_searches": 0,
    }
    assert (shown["reported_usage"], shown["reported_cost"]) == (None, None)
    assert [verdict["policy_id"] for verdict in shown["verdicts"]] == [VERDICT.policy_id]
    line = ("--organization", books.organization, "--project", books.project, "--status", "200")
    assert await _json(operator, "activity", "list", *line) == {"data": [shown]}
    assert str(hold.id) in (await _run(operator, "activity", "list", *line[:2])).out
    empty = await _json(
        operator, "activity", "list", "--organization", books.organization, "--status", "500"
    )
    assert empty == {"data": []}


async def test_unknown_things_are_refused(operator: Program) -> None:
    unknown, nonsense = str(uuid4()), "nonsense"
    for line, noun in (
        (("credit", "show", unknown), "organization"),
        (("cap", "show", unknown), "organization"),
        (("overage", "show", unknown), "organization"),
        (("limit", "show", unknown), "project"),
        (("costs", unknown), "organization"),
        (("ledger", "resolve", unknown, "--release"), "reservation"),
        (("ledger", "resolve", nonsense, "--release"), "reservation"),
        (("activity", "show", unknown), "request"),
        (("activity", "show", nonsense), "request"),
        (("activity", "list", "--organization", unknown), "organization"),
        (("activity", "list", "--project", unknown), "project"),
    ):
        identity = nonsense if nonsense in line else unknown
        said = await _refusal(operator, *line)
        # A refused request with this id may have no record of its own; the message says so.
        repeated = (
            " Only the first 20 refused requests"
            if (noun, identity) == ("request", unknown)
            else ""
        )
        assert said.startswith(f"There is no {noun} {identity}.{repeated}")
        assert bool(repeated) or said.endswith(f"{identity}.")
