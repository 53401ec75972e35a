"""Tests `tollkeeper ledger resolve --all`: its output, its selection, and the effect of an interruption."""

import asyncio
import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.books import MODEL, USD, Books
from tests.support.program import Outcome, Program, model_entry
from tests.support.tables import each

_BULK = ("ledger", "resolve", "--all", "--older-than", "24h")
_BATCH = 500
# The default limit of concurrent holds of a project.
_CONCURRENCY = 256
_BACKENDS = """
[[backends]]
name = "elsewhere"
kind = "openai"
urls = ["http://127.0.0.1:9/v1"]
"""


async def _run(operator: Program, *line: object) -> Outcome:
    """Runs the command in a thread, so that the event loop of `books` continues to run."""
    return await asyncio.to_thread(operator.run, *map(str, line))


async def _json(operator: Program, *line: object) -> Any:
    return await asyncio.to_thread(operator.json, *map(str, line))


async def _leave_unsettled(books: Books, amount: int, reason: str, hours: int = 25) -> None:
    hold = await books.hold(amount)
    await books.leave_unsettled(hold, reason)
    await books.sql(
        "UPDATE unsettled_marks SET marked_at = marked_at - make_interval(hours => %s)"
        " WHERE reservation_id = %s",
        hours,
        hold.id,
    )


async def _leave_many_unsettled(books: Books, many: int) -> None:
    for start in range(0, many, _CONCURRENCY):
        at_once = min(_CONCURRENCY, many - start)
        holds = await asyncio.gather(*(books.hold(1) for _ in range(at_once)))
        await asyncio.gather(*(books.leave_unsettled(hold) for hold in holds))
    await books.sql(
        "UPDATE unsettled_marks SET marked_at = marked_at - interval '2 days'"
        " WHERE organization_id = %s",
        books.organization,
    )


async def test_a_dry_run_says_how_many_how_much_and_why(operator: Program, books: Books) -> None:
    for amount, reason in ((1, "silence"), (2, "a reset"), (4, "silence")):
        await _leave_unsettled(books, amount * USD, reason)
    await _leave_unsettled(books, 8 * USD, "silence", hours=23)
    await books.hold(16 * USD)
    line = (*_BULK, "--organization", books.organization, "--release")
    found = {
        "reservations": 3,
        "hold": "7",
        "reasons": [
            {"reason": "silence", "reservations": 2, "hold": "5"},
            {"reason": "a reset", "reservations": 1, "hold": "2"},
        ],
    }
    assert await _json(operator, *line, "--dry-run") == {
        "dry_run": True,
        "action": "release",
        "found": found,
        "resolved": None,
    }
    shown = await _run(operator, *line, "--dry-run")
    assert (shown.code, shown.err) == (0, "")
    assert "silence" in shown.out
    assert "3 reservations would be released; their holds are 7 USD in total.\n" in shown.out
    assert (await books.balance())["unsettled"] == 15 * USD

    assert await _json(operator, *line) == {
        "dry_run": False,
        "action": "release",
        "found": found,
        "resolved": {"reservations": 3, "hold": "7"},
    }
    again = await _run(operator, *line)
    assert (again.code, again.out, again.err) == (0, "No unsettled reservation matches.\n", "")
    balance = await books.balance()
    assert (balance["unsettled"], balance["held"], balance["available"]) == (
        8 * USD,
        16 * USD,
        76 * USD,
    )
    await books.assert_right()


async def test_each_is_settled_at_its_hold(operator: Program, books: Books) -> None:
    await _leave_unsettled(books, 3 * USD, "silence")
    line = (*_BULK, "--organization", books.organization, "--settle-hold")
    shown = await _run(operator, *line)
    assert shown.code == 0
    # In a pipe, the progress is plain text.
    assert shown.err == "1 of 1\n"
    assert "1 reservations were settled; their holds are 3 USD in total.\n" in shown.out
    assert (await books.balance())["settled"] == 3 * USD
    await books.assert_right()


async def test_many_reasons_are_summed_up(operator: Program, books: Books) -> None:
    for number in range(23):
        await _leave_unsettled(books, 1, f"reason {number:02}")
    line = (*_BULK, "--organization", books.organization, "--release", "--dry-run")
    reasons = (await _json(operator, *line))["found"]["reasons"]
    assert len(reasons) == 21
    assert reasons[-1] == {
        "reason": "(other reasons)",
        "reservations": 3,
        "hold": "0.000000000003",
    }


async def test_only_what_a_backend_has_in_the_catalogue(
    operator: Program, books: Books, tmp_path: Path
) -> None:
    config = tmp_path / "tollkeeper.toml"
    entry = model_entry(MODEL, backend="elsewhere")
    config.write_text(operator.config.read_text() + _BACKENDS + entry)
    program = operator.with_config(config)
    await _leave_unsettled(books, USD, "silence")
    mine = ("--organization", books.organization, "--release")
    other = await _json(program, *_BULK, "--backend", "cluster", *mine)
    assert other["found"]["reservations"] == 0
    found = await _json(program, *_BULK, "--backend", "elsewhere", *mine)
    assert found["resolved"] == {"reservations": 1, "hold": "1"}
    line = map(str, (*_BULK, "--backend", "nowhere", *mine))
    assert await asyncio.to_thread(program.refusal, *line) == (
        "No model in the settings uses the backend nowhere. These backends are used: cluster, elsewhere."
    )


async def test_an_unknown_organization_is_refused(operator: Program) -> None:
    refused = await _run(operator, *_BULK, "--organization", "nonsense", "--release")
    assert (refused.code, refused.err) == (1, "tollkeeper: There is no organization nonsense.\n")


@each(
    "line",
    [
        "--all --release",
        "--all --older-than 24h",
        "--all --older-than 24h --release --settle-hold",
        "--all --older-than 24h --settle 1",
        "--all --older-than 24 --release",
        "--all --older-than -1h --release",
        "--all --older-than 999999999d --release",
        "--all --older-than 24h --release 00000000-0000-4000-8000-000000000000",
        "--release",
        "--release --older-than 24h 00000000-0000-4000-8000-000000000000",
        "--release --dry-run 00000000-0000-4000-8000-000000000000",
        "--settle-hold 00000000-0000-4000-8000-000000000000",
    ],
)
async def test_wrong_usage(operator: Program, line: str) -> None:
    outcome = await _run(operator, "ledger", "resolve", *line.split())
    assert (outcome.code, outcome.out) == (2, "")
    if "--settle 1" in line:
        assert "--settle USD cannot be combined with --all" in outcome.err


@pytest.mark.slow
async def test_a_killed_run_is_repeated(operator: Program, books: Books) -> None:
    many = 5 * _BATCH
    await _leave_many_unsettled(books, many)
    line = (*_BULK, "--organization", str(books.organization), "--release")

    def kill_after_the_first_batch() -> str:
        with subprocess.Popen(
            operator.line(*line),
            cwd=operator.folder,
            env=operator.process_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            first = process.stderr.readline()
            process.kill()
            return first

    assert await asyncio.to_thread(kill_after_the_first_batch) == f"{_BATCH} of {many}\n"
    left = (await books.balance())["unsettled"]
    assert left <= many - _BATCH
    # A batch is committed as a whole or not at all.
    assert left % _BATCH == 0
    await books.assert_right()
    again = await _json(operator, *line)
    assert again["found"]["reservations"] == again["resolved"]["reservations"]
    balance = await books.balance()
    assert (balance["unsettled"], balance["available"]) == (0, 100 * USD)
    await books.assert_right()


@pytest.mark.slow
@pytest.mark.parametrize("quiet", [False, True])
async def test_on_a_terminal_there_is_a_bar(operator: Program, books: Books, quiet: bool) -> None:
    await _leave_many_unsettled(books, 3)
    line = [*_BULK, "--organization", str(books.organization), "--release"]
    terminal, theirs = pty.openpty()

    def run() -> tuple[bytes, bytes]:
        with os.fdopen(theirs, "wb") as errors:
            done = subprocess.run(
                operator.line(*line, *(["--json"] if quiet else [])),
                cwd=operator.folder,
                env={**operator.process_environment(), "TERM": "xterm"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                check=True,
            )
        try:
            return done.stdout, os.read(terminal, 65536)
        except OSError:  # The other end is closed, and nothing was written.
            return done.stdout, b""
        finally:
            os.close(terminal)

    out, shown = await asyncio.to_thread(run)
    if quiet:
        assert json.loads(out)["resolved"]["reservations"] == 3
        assert shown == b""
    else:
        assert b"3 reservations were released" in out
        assert b"Resolving" in shown
