"""Tests that no part of a plain call executes more bytecodes than its target."""

from itertools import count

import uvloop
from bench.step_targets import LIBRARIES, PIECE_TARGET, TARGETS, part_of
from bench.steps import CROWDS, count_steps, steps_by_part

from tests.support.databases import own_database
from tollkeeper.core.runtime.overload import OverloadGate, OwnerCalls

_REQUESTS = 256
# A part may take this many times its target.
_SLACK = 1.02


def test_no_part_of_a_call_gets_longer(shared_conninfo: str) -> None:
    conninfo = own_database(shared_conninfo, "steps")
    functions, piece = uvloop.run(count_steps(_REQUESTS, conninfo))
    counted = steps_by_part(functions)
    too_long = {
        part: (round(steps), TARGETS[part])
        for part, steps in counted.items()
        if part != LIBRARIES and steps > _SLACK * TARGETS[part]
    }
    assert not too_long, "bytecodes per call, and the target"
    loose = [part for part, steps in counted.items() if steps < 0.9 * TARGETS[part]]
    assert not loose, "these parts are shorter now: lower their targets"
    # This is the upper limit: pieces that arrive together take fewer bytecodes each.
    assert sum(one.steps for one in piece) <= _SLACK * PIECE_TARGET, "bytecodes per piece"


def test_files_belong_to_parts() -> None:
    assert part_of("tollkeeper/backends/transport/pool.py") == part_of("tollkeeper/hosting/x.py")
    assert part_of("uuid.py") == LIBRARIES


def test_an_overloaded_gateway_serves_every_crowd() -> None:
    gate = OverloadGate(clock=count().__next__)
    for _ in range(100):
        gate.sample(turn_s=1.0, backlog=0)
    assert gate.limit is not None
    calls = gate.owners["tenant"] = OwnerCalls("tenant")
    for _ in range(max(CROWDS)):
        gate.require_room("tenant")
        calls.running += 1
