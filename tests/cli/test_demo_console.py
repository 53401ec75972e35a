"""`tollkeeper demo` starts the console, prints its address and token, and takes it along at the end."""

import json
import subprocess

import httpx2
import psutil

from tests.support.processes import children_of
from tests.support.program import Program, eventually, stop


def test_the_demo_has_a_console(cold_program: Program) -> None:
    process = psutil.Popen(
        cold_program.line("demo", "--json"),
        cwd=cold_program.folder,
        env=cold_program.process_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        said = json.loads(process.stdout.readline())
        with httpx2.Client(base_url=said["console"], timeout=60) as client:
            assert client.post("/sign-in", data={"token": "wrong"}).status_code == 403
            answer = client.post("/sign-in", data={"token": said["operator_token"]})
            assert answer.status_code == 303
            page = client.get(f"/organizations/{said['organization_id']}")
        assert page.status_code == 200
        assert "$10" in page.text
        consoles = children_of(process, lambda line: "console" in line, recursive=True)
        assert len(consoles) == 1
    finally:
        stop(process)
    eventually(lambda: not any(child.is_running() for child in consoles))
