"""Tests the log, as JSON and as text for people, including the events of libraries."""

import json
import subprocess
import sys
from typing import Literal

from tests.support.tables import each

_PROGRAM = """
import logging, sys, structlog
from tollkeeper.entry import logs
logs.logs_are_for_people = lambda: sys.argv[1] == "text"
logs.configure_logs()
log = structlog.get_logger("x")
log.info("all is well", worker=1, nothing=None)
log.warning("look at this", reason="a\\x1bb", long="y" * 5000)
logging.getLogger("psycopg.pool").warning("error connecting in %r: %s", "pool-1", "refused")
logging.getLogger("noise").info("not shown")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
"""


def _lines(form: Literal["json", "text"]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, form],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_every_line_of_the_json_log_is_json() -> None:
    events = [json.loads(line) for line in _lines("json")]
    assert [event["event"] for event in events] == [
        "all is well",
        "look at this",
        "error connecting in 'pool-1': refused",
        "failed",
    ]
    assert [event["level"] for event in events] == ["info", "warning", "warning", "error"]
    assert events[2]["library"] == "psycopg.pool"
    assert len(events[1]["long"]) < 2100
    assert events[3]["exception"].endswith("ZeroDivisionError: division by zero")


def test_lines_for_people() -> None:
    lines = _lines("text")
    assert lines[0][8:] == " all is well (worker=1)"
    assert lines[1][8:].startswith(r" warning: look at this (reason=a\x1bb, long=")
    assert "warning: error connecting in 'pool-1': refused" in lines[2]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert not any(line.startswith("{") for line in lines)


@each("form", ["json", "text"])
def test_no_line_carries_a_terminal_command(form: Literal["json", "text"]) -> None:
    assert "\x1b" not in "".join(_lines(form))
