"""The tests are tested: each of these mistakes, planted into a copy of the source, must be caught.

A mistake is a change of the source's text. The tests named beside it run on the changed copy, in a
process of their own, and at least one of them has to fail.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.proof import Proof

ROOT = Path(__file__).parents[2]
TESTS = "tests/"
TESTS_FAILED = 1
TIMEOUT_S = 900

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)


@dataclass(frozen=True)
class Bug:
    file: str
    right: str
    wrong: str
    # Files below `tests/`.
    caught_by: tuple[str, ...]
    # Where a second line of defence has to fall as well.
    also: tuple[tuple[str, str], ...] = ()


ADMISSION = "domain/admission.py"
LEDGER = "services/ledger/ledger.py"
HOLD_QUEUE = "services/ledger/hold_queue.py"
STORE = "storage/ledger_store.py"
HISTORIES = ("proofs/test_simulation.py",)

BUGS = {
    # Money.
    "check-then-act": Bug(
        "storage/ledger.py",
        "FROM accounts WHERE organization_id = ANY (%s) ORDER BY organization_id FOR UPDATE",
        "FROM accounts WHERE organization_id = ANY (%s) ORDER BY organization_id",
        ("services/ledger/test_ledger.py",),
    ),
    "float money in code": Bug(
        "domain/pricing.py",
        "        prompt_price * bounds.prompt_tokens\n",
        "        float(prompt_price) * bounds.prompt_tokens\n",
        ("domain/test_pricing.py",),
    ),
    "float money in the database": Bug(
        "storage/migrations/versions/0002_ledger.py",
        "CREATE DOMAIN picousd AS numeric(38, 0);",
        "CREATE DOMAIN picousd AS double precision;",
        ("storage/test_constraints.py",),
    ),
    "negative usage is credited": Bug(
        "domain/usage.py",
        "or not 0 <= value <= _COUNT_MAX",
        "or not value <= _COUNT_MAX",
        ("domain/test_pricing.py",),
        also=(
            ("cached is None or cached > prompt", "cached is None"),
            ("reasoning is None or reasoning > completion", "reasoning is None"),
        ),
    ),
    "cached tokens are held at the cheaper price": Bug(
        "domain/pricing.py",
        "prompt_price = max(pricing.prompt, pricing.input_cache_read)",
        "prompt_price = min(pricing.prompt, pricing.input_cache_read)",
        ("domain/test_pricing.py",),
    ),
    # How a call ends.
    "settlement in the request's task": Bug(
        LEDGER,
        "        return await asyncio.shield("
        "self._resolutions.submit(_FinishedCall(resolution, hold)))\n",
        "        [ending] = await self._store.resolve_all([resolution])\n"
        "        return ending is Ending.DONE\n",
        ("services/ledger/test_doubts.py",),
    ),
    "settlement given up when the database is away": Bug(
        LEDGER,
        "        endings = list(await _until_written(lambda: write(batch), len(batch)))\n",
        "        endings = list(await write(batch))\n",
        HISTORIES,
    ),
    "void on unknown outcome": Bug(
        "services/ledger/admission.py",
        "        await self._ledger.mark_unsettled(reservation.hold, reason)\n",
        "        await self.release(reservation)\n",
        HISTORIES,
    ),
    "the end of a stream is taken for its [DONE]": Bug(
        "backends/replica.py",
        """            stream.fail(BackendFailed("The backend's stream ended before the answer did."))
            return []
""",
        """            stream.done = True
            return []
""",
        ("journeys/calls/test_faults.py",),
    ),
    "asynchronous settlement": Bug(
        STORE,
        "trips.run(FIND_ROWS_BY_KEY, resolutions",
        "trips.run(ledger.fast_transaction(None), resolutions",
        ("services/ledger/test_doubts.py",),
    ),
    "a reservation resolves twice": Bug(
        "storage/resolutions.py",
        "        ON CONFLICT DO NOTHING\n        RETURNING organization_id, reservation_id AS id, day",
        "        ON CONFLICT (organization_id, reservation_id) DO UPDATE SET day = excluded.day\n"
        "        RETURNING resolutions.organization_id, reservation_id AS id, resolutions.day",
        ("services/ledger/test_ledger.py",),
    ),
    "overage is forgotten": Bug(
        "storage/resolutions.py",
        "greatest(total - hold, 0)\n        FROM fresh",
        "0\n        FROM fresh",
        ("services/ledger/test_ledger.py",),
    ),
    "a hold that the database lost is not charged": Bug(
        LEDGER,
        "    if ending is not Ending.MISSING or call.hold is None:\n",
        "    if ending is not Ending.MISSING or call.hold is not None:\n",
        ("proofs/test_simulation.py", "services/ledger/test_doubts.py"),
    ),
    # Holds that nobody took.
    "the hold of a caller who left stays": Bug(
        LEDGER,
        "            self._abandoned.add(hold.id)\n",
        "",
        HISTORIES,
    ),
    "a hold in doubt stays": Bug(
        LEDGER,
        "                self._in_doubt.submit(hold)\n",
        "                self._open.discard(hold.id)\n",
        HISTORIES,
    ),
    "a hold in doubt is released before it is there": Bug(
        STORE,
        "            await resolutions.lock_account("
        "connection, *{hold.organization_id for hold in holds})\n",
        "",
        ("services/ledger/test_doubts.py",),
    ),
    "a hold in doubt is simply made again": Bug(
        LEDGER,
        "        except Contention:\n",
        "        except (Contention, CommitInDoubt):\n",
        HISTORIES,
    ),
    "one spoils the batch for everybody": Bug(
        "services/ledger/group_writer.py",
        "            if len(items) == 1:\n",
        "            if len(items) >= 1:\n",
        ("services/ledger/test_group_writer.py", "services/ledger/test_ledger.py"),
    ),
    "a locked organization blocks everybody": Bug(
        HOLD_QUEUE,
        "            return await self._write(holds, lock_wait_s=_LOCK_WAIT_S)\n",
        "            return await self._write(holds, lock_wait_s=None)\n",
        ("services/ledger/test_ledger.py",),
    ),
    "nobody hears that the writer was stopped": Bug(
        "services/ledger/group_writer.py",
        '        _fail(results, Unavailable("The gateway is shutting down."))\n',
        "",
        ("services/ledger/test_group_writer.py",),
    ),
    # Recovery.
    "the sweep judges without waiting": Bug(
        "services/ledger/recovery.py",
        "range(_HEARTBEATS_OBSERVED if gone else 0)",
        "range(0)",
        ("services/ledger/test_recovery.py",),
    ),
    "recovery only looks a day back": Bug(
        "services/ledger/open_holds.py",
        "        for organization_id in search.incomplete:\n",
        "        for organization_id in set():\n",
        ("services/ledger/test_recovery.py",),
        also=(("_SEARCH_S = 3600\n", "_SEARCH_S = 86_400\n"),),
    ),
    "recovery only looks at registered processes": Bug(
        "services/ledger/recovery.py",
        "unregistered_too=True",
        "unregistered_too=False",
        ("services/ledger/test_recovery.py",),
    ),
    "a live process that is not registered is taken for dead": Bug(
        "services/ledger/recovery.py",
        "(found in unregistered if at is None",
        "(True if at is None",
        ("services/ledger/test_recovery.py",),
    ),
    "the sweep forgets a process that lives": Bug(
        "storage/processes.py",
        '"DELETE FROM processes WHERE id = %s AND heartbeat_at = %s", (process_id, heartbeat_at)',
        '"DELETE FROM processes WHERE id = %s AND %s IS NOT NULL", (process_id, heartbeat_at)',
        ("services/ledger/test_recovery.py",),
    ),
    "the sweep marks without the account's lock": Bug(
        "storage/resolutions.py",
        "ORDER BY organization_id FOR UPDATE",
        "ORDER BY organization_id",
        ("services/ledger/test_unsettled_marks.py",),
    ),
    "the sweep takes what is resolved": Bug(
        "storage/resolutions.py",
        "              AND NOT EXISTS (\n"
        "                  SELECT FROM resolutions d\n"
        "                  WHERE d.organization_id = r.organization_id AND d.reservation_id = r.id)\n",
        "",
        ("services/ledger/test_unsettled_marks.py",),
    ),
    "a hold without its process": Bug(
        "storage/ledger.py",
        '", alive AS (" + HEARTBEAT + ")"',
        '", alive AS (SELECT %s::uuid)"',
        ("services/ledger/test_recovery.py",),
    ),
    # What is unsettled, many at a time.
    "a bulk resolution takes holds of live processes": Bug(
        "storage/unsettled.py",
        "    FROM unsettled_marks m\n",
        "    FROM (SELECT organization_id, id AS reservation_id, held_at AS marked_at,\n"
        "                 'unknown' AS reason FROM reservations) m\n",
        ("services/ledger/test_bulk_resolution.py",),
    ),
    "a bulk resolution takes what is too young": Bug(
        "storage/unsettled.py",
        "OR m.marked_at < %(marked_before)s)",
        "OR r.held_at < %(marked_before)s)",
        ("services/ledger/test_bulk_resolution.py",),
    ),
    "a bulk resolution skips what is behind its first page": Bug(
        "services/ledger/bulk_resolution.py",
        "            after = page[-1][0]\n",
        "            return Resolved(resolved, hold_picousd)\n",
        ("services/ledger/test_bulk_resolution.py",),
    ),
    # The decision.
    "a revoked key is admitted": Bug(
        ADMISSION,
        "    if status is not KeyStatus.ACTIVE:\n",
        "    if status is None:\n",
        ("domain/test_decide.py",),
    ),
    "an archived project is admitted": Bug(
        ADMISSION,
        "    if project.archived:\n",
        "    if project.archived and project.live_holds:\n",
        ("domain/test_decide.py",),
    ),
    "a negative balance admits free calls": Bug(
        ADMISSION,
        "    if request.hold_picousd <= working.available and working.available >= 0:\n",
        "    if request.hold_picousd <= max(0, working.available):\n",
        ("domain/test_decide.py",),
    ),
    "unsettled holds do not count for a cap": Bug(
        ADMISSION,
        "        return self.held_picousd + self.unsettled_picousd + self.settled_picousd\n",
        "        return self.held_picousd + self.settled_picousd\n",
        ("domain/test_decide.py",),
    ),
    "the month goes back with the clock": Bug(
        ADMISSION,
        "        if month <= self.month:\n",
        "        if month == self.month:\n",
        ("domain/test_decide.py",),
    ),
    "a clock that trembles refills twice": Bug(
        ADMISSION,
        "    at_us = project.rate_at_us if -_US_PER_MINUTE <= elapsed < 0 else now_us\n",
        "    at_us = now_us\n",
        ("domain/test_decide.py",),
    ),
    "concurrency is off by one": Bug(
        ADMISSION,
        "    if project.live_holds < project.concurrency:\n",
        "    if project.live_holds <= project.concurrency:\n",
        ("domain/test_decide.py",),
    ),
    "what is unsettled is counted twice": Bug(
        ADMISSION,
        "        from_held = 0 if fold.was_unsettled else fold.hold_picousd\n",
        "        from_held = fold.hold_picousd\n",
        ("domain/test_folds.py",),
    ),
    "the rest of a hold never comes back": Bug(
        ADMISSION,
        "            given_back = fold.hold_picousd - fold.settled_picousd - fold.overage_picousd\n",
        "            given_back = -fold.overage_picousd\n",
        ("domain/test_folds.py",),
    ),
}


def planted(bug: Bug, source: Path) -> str:
    """The file's text with the bug in it."""
    path = source / "tollkeeper" / bug.file
    text = path.read_text()
    for right, wrong in ((bug.right, bug.wrong), *bug.also):
        assert text.count(right) == 1, "there is one place for it"
        text = text.replace(right, wrong)
    compile(text, path, "exec")
    return text


def run_tests(source: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider"),
            *(TESTS + name for name in tests),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def copied_source(tmp_path: Path) -> Path:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    return source


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_can_be_planted(name: str) -> None:
    """The source changes, and the suite of bugs must not rot unnoticed."""
    planted(BUGS[name], ROOT / "src")


@pytest.mark.parametrize("name", BUGS)
def test_what_catches_a_bug_is_there(name: str) -> None:
    """A file that moves away is missed here, and not only in the long run."""
    assert BUGS[name].caught_by
    assert [test for test in BUGS[name].caught_by if not (ROOT / TESTS / test).is_file()] == []


@pytest.mark.usefixtures("only_long")
def test_without_a_bug_everything_passes(copied_source: Path) -> None:
    """Also that it is the copy which is tested: a broken one is noticed."""
    used = sorted({test for bug in BUGS.values() for test in bug.caught_by})
    done = run_tests(copied_source, tuple(used))
    assert done.returncode == 0, done.stdout[-3000:]
    (copied_source / "tollkeeper" / "__init__.py").write_text("raise ZeroDivisionError\n")
    assert "ZeroDivisionError" in run_tests(copied_source, ("domain/test_pricing.py",)).stderr


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(copied_source: Path, proof: Proof, name: str) -> None:
    bug = BUGS[name]
    (copied_source / "tollkeeper" / bug.file).write_text(planted(bug, copied_source))
    done = run_tests(copied_source, bug.caught_by)
    assert done.returncode == TESTS_FAILED, done.stdout[-3000:] + done.stderr[-3000:]
    assert "AssertionError" in done.stdout or "FAILED" in done.stdout, done.stdout[-3000:]
    proof.count("planted bugs caught")
