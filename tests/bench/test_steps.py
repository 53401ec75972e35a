"""No part of a plain call's path takes more bytecodes than its target."""

import uvloop
from bench.step_targets import LIBRARIES, PIECE_TARGET, TARGETS, part_of
from bench.steps import count_steps, steps_by_part

_REQUESTS = 256
_SLACK = 1.02


def test_no_part_of_a_call_gets_longer() -> None:
    functions, piece = uvloop.run(count_steps(_REQUESTS))
    counted = steps_by_part(functions)
    too_long = {
        part: (round(steps), TARGETS[part])
        for part, steps in counted.items()
        if part != LIBRARIES and steps > _SLACK * TARGETS[part]
    }
    assert not too_long, "bytecodes per call, and the target"
    loose = [part for part, steps in counted.items() if steps < 0.9 * TARGETS[part]]
    assert not loose, "these parts are shorter now: lower their targets"
    # Pieces that arrive together take less.
    assert sum(one.steps for one in piece) <= _SLACK * PIECE_TARGET, "bytecodes per piece"


def test_files_belong_to_parts() -> None:
    assert part_of("tollkeeper/backends/transport/pool.py") == part_of("tollkeeper/hosting/x.py")
    assert part_of("uuid.py") == LIBRARIES
