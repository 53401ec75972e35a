"""Tests that `tollkeeper demo` starts the console, prints its address and token, and stops it at the end."""

import json
import subprocess

import httpx2
import psutil
import pytest

from tests.support.processes import children_of
from tests.support.program import Program, eventually, stop

pytestmark = pytest.mark.slow


def test_the_demo_shows_progress_and_has_a_console(cold_program: Program) -> None:
    log = cold_program.folder / "demo.log"
    with log.open("w") as errors:
        process = psutil.Popen(
            cold_program.line("demo", "--json"),
            cwd=cold_program.folder,
            env=cold_program.process_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    # The demo announces each step that can take long before it begins, even in a pipe.
    steps = ["tollkeeper", "PostgreSQL", "the console", "the gateway"]
    try:
        said = json.loads(process.stdout.readline())
        told = [line for line in log.read_text().splitlines() if line.endswith(" ...")]
        assert told == [*(f"Starting {step} ..." for step in steps), "Loading the model ..."]
        with httpx2.Client(base_url=said["console"], timeout=60) as client:
            assert client.post("/sign-in", data={"token": "wrong"}).status_code == 403
            answer = client.post("/sign-in", data={"token": said["operator_token"]})
            assert answer.status_code == 303
            page = client.get(f"/organizations/{said['organization_id']}")
        assert page.status_code == 200
        # Claude Code checks its server with this request.
        assert httpx2.head(said["public"], timeout=60).status_code == 200
        assert "$10" in page.text
        consoles = children_of(process, lambda line: "console" in line, recursive=True)
        assert len(consoles) == 1
    finally:
        stop(process)
    eventually(lambda: not any(child.is_running() for child in consoles))
