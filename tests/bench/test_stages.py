"""Tests that each sampled stack belongs to the right stage of a call."""

from bench.stages import HOLDS, LOOP, REQUEST, REST, SCRIPT, SETTLEMENTS, stage_of

from tests.support.tables import each


@each(
    ("innermost", "stage"),
    [
        ("feed_data (tollkeeper/hosting/http_protocol.py:10)", LOOP),
        ("select (asyncio/base_events.py:1)", LOOP),
        ("decode (tollkeeper/api/chat/call.py:4)", REQUEST),
        ("price (tollkeeper/domain/pricing.py:4)", REQUEST),
        ("run (tollkeeper/services/calls/tab.py:4)", SCRIPT),
        ("write (tollkeeper/services/ledger/holds.py:4)", HOLDS),
        ("write (tollkeeper/services/ledger/group_writer.py:4)", SETTLEMENTS),
    ],
)
def test_the_innermost_file_with_a_stage_decides(innermost: str, stage: str) -> None:
    outer = [] if stage == LOOP else ["route (tollkeeper/api/app.py:1)"]
    assert stage_of([*outer, innermost]) == stage


@each(
    ("caller", "stage"),
    [
        ("_hold (tollkeeper/services/ledger/holds.py:4)", HOLDS),
        ("_write_finished (tollkeeper/services/ledger/ledger.py:4)", SETTLEMENTS),
        ("_write (tollkeeper/services/calls/activity.py:4)", REST),
    ],
)
def test_a_shared_file_belongs_to_the_stage_of_its_caller(caller: str, stage: str) -> None:
    assert stage_of([caller, "run (tollkeeper/storage/round_trips.py:4)"]) == stage
