"""Tests that the real ledger agrees with a plain model after each step, with operations in any order."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from tests.proofs.ledger_machine import STEPS, LedgerMachine
from tests.support.database_clock import DatabaseClock
from tests.support.databases import own_database
from tests.support.ledger import make_database
from tests.support.proof import Proof


@pytest.fixture
def machine(conninfo: str) -> Iterator[type[LedgerMachine]]:
    """Gives the machine its own database and event loop. Each example empties the database first."""
    apart = own_database(conninfo, f"machine_{uuid4().hex}")
    with DatabaseClock(apart) as clock, closing(asyncio.new_event_loop()) as loop:
        LedgerMachine.clock = clock
        LedgerMachine.loop = loop
        LedgerMachine.database = make_database(apart)
        loop.run_until_complete(LedgerMachine.database.open())
        yield LedgerMachine
        loop.run_until_complete(LedgerMachine.database.close())


def test_the_ledger_agrees_with_a_plain_model(machine: type[LedgerMachine], proof: Proof) -> None:
    machine.histories = machine.steps = machine.crashes = 0
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=proof.size(9, 500, smoke=2),
            stateful_step_count=STEPS,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    proof.count("histories of the ledger beside a plain model", machine.histories)
    proof.count("steps of the ledger beside a plain model", machine.steps)
    proof.count("processes killed beside a plain model", machine.crashes)
