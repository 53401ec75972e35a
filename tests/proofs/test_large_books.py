"""Tests that `ledger verify` is exact and needs limited memory with many reservations and live traffic."""

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.databases import own_database
from tests.support.large_books import fill_books
from tests.support.ledger import LedgerTenant, Process, held, running_process, settlement
from tests.support.ledger_months import OldBooks, this_month
from tests.support.proof import Proof

pytestmark = pytest.mark.slow

_ORGANIZATIONS = 60
_CALLS_QUICK, _CALLS_LONG = 10_000, 1_000_000
# The limit for the memory growth during a verification of books of any size.
_GROWTH_KIB_MAX = 32 * 1024
# The verification is a separate program, so that the measured memory contains nothing else.
_VERIFY = """
import asyncio, sys
from pathlib import Path
from tests.support.ledger import make_database
from tollkeeper.money.unsettled.service import Reconciliation
from tollkeeper.money.verification.store import Ages

def kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

async def verify():
    database = make_database(sys.argv[1])
    await database.open()
    books = Reconciliation(database, Ages(10**7, 10**7))
    before = kib("VmRSS:")
    found = await books.ledger_verify(full=True)
    grown = kib("VmHWM:") - before
    await database.close()
    print(len(found), grown)

asyncio.run(verify())
"""


@pytest.fixture
async def large(
    shared_conninfo: str, proof: Proof
) -> AsyncIterator[tuple[str, OldBooks, list[LedgerTenant]]]:
    """Creates books with calls in the current month and two months ago."""
    conninfo = own_database(shared_conninfo, f"large_{secrets.token_hex(4)}")
    async with running_process(conninfo) as process:
        books = OldBooks(process)
        now = this_month()
        await books.begin(now.plus(-2))
        calls = proof.size(quick=_CALLS_QUICK, long=_CALLS_LONG)
        tenants = await fill_books(
            process.database, calls=calls, organizations=_ORGANIZATIONS, months=(now.plus(-2), now)
        )
        yield conninfo, books, tenants


async def test_verify_is_exact_and_bounded_beside_live_traffic(
    large: tuple[str, OldBooks, list[LedgerTenant]], proof: Proof
) -> None:
    conninfo, books, tenants = large
    for closed in (False, True):
        if closed:
            await books.months.ledger_close()
        stop = asyncio.Event()
        traffic = _traffic(books.process, tenants, stop)
        differences, grown_kib = await _measured(conninfo, stop)
        made = await asyncio.gather(*traffic)
        assert differences == 0
        assert grown_kib < _GROWTH_KIB_MAX
        assert all(made), "calls went on while it was verified"
        proof.count("calls made while the ledger was verified", sum(made))
    reservations = proof.size(quick=_CALLS_QUICK, long=_CALLS_LONG)
    proof.count("reservations verified beside live traffic", reservations)
    (first, *_) = await books.months.ledger_months()
    assert (first.month, first.state) == (this_month().plus(-2), "proven")


async def _measured(conninfo: str, stop: asyncio.Event) -> tuple[int, int]:
    """Runs the verification and then sets `stop`. Returns the number of differences, and the growth of
    the program's memory in KiB."""
    root = Path(__file__).parents[2]
    try:
        began = time.monotonic()
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", _VERIFY, conninfo],
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
        )
        took_s = time.monotonic() - began
    finally:
        stop.set()
    assert done.returncode == 0, done.stderr
    sys.stderr.write(f"verified in {took_s:.1f} s, memory grew by {done.stdout.split()[1]} KiB\n")
    differences, grown_kib = map(int, done.stdout.split())
    return differences, grown_kib


def _traffic(
    process: Process, tenants: list[LedgerTenant], stop: asyncio.Event
) -> list["asyncio.Future[int]"]:
    async def calls(tenant: LedgerTenant) -> int:
        made = 0
        while not stop.is_set() or not made:
            hold = await held(process, tenant, 10)
            if made % 5 == 4:
                await process.ledger.mark_unsettled(hold, "nobody knows")
            await process.ledger.resolve(settlement(hold, 3 * (made % 6)), hold)
            made += 1
        return made

    return [asyncio.ensure_future(calls(tenant)) for tenant in tenants[:4]]
