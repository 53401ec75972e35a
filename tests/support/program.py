"""Runs the real program as a process: single commands, a gateway or a console.

Starting Python and importing modules takes ten times as long as most commands. So if a test needs only
the result of a command, it uses a fork of a process that has already imported everything (`warm`).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import psutil

from tests.support.data_folders import cluster_of
from tests.support.processes import workers_of
from tests.support.warm_program import run_warm

_TIMEOUT_S = 120


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Program:
    """Describes how to run tollkeeper: with one settings file, in `folder`."""

    config: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    warm: bool = False
    # Comes before the command line (`line`), for example `ip netns exec`; `run` ignores it.
    wrapper: tuple[str, ...] = ()

    def with_config(self, config: Path) -> "Program":
        return replace(self, config=config)

    def with_environment(self, **variables: str) -> "Program":
        return replace(self, environment={**self.environment, **variables})

    def line(self, *arguments: str) -> list[str]:
        line = [sys.executable, "-m", "tollkeeper", *arguments, "--config", str(self.config)]
        return [*self.wrapper, *line]

    def raw(self, *line: str) -> Outcome:
        if self.warm:
            return Outcome(
                *run_warm(
                    line,
                    folder=self.folder,
                    environment=self.process_environment(),
                    timeout_s=_TIMEOUT_S,
                )
            )
        return self.in_a_process("-m", "tollkeeper", *line)

    def in_a_process(self, *line: str) -> Outcome:
        """Runs the interpreter with these arguments, in the program's folder and environment."""
        done = subprocess.run(
            [sys.executable, *line],
            cwd=self.folder,
            env=self.process_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def run(self, *arguments: str) -> Outcome:
        return self.raw(*arguments, "--config", str(self.config))

    def json(self, *arguments: str) -> Any:
        """Returns the JSON document of a command that succeeds, and checks that it printed nothing else."""
        outcome = self.run(*arguments, "--json")
        assert outcome.code == 0, (outcome.err, outcome.out)
        assert outcome.err == ""
        return json.loads(outcome.out)

    def refusal(self, *arguments: str) -> str:
        """Returns the error line of a command that is refused, and checks that it printed nothing else."""
        outcome = self.run(*arguments)
        assert outcome.code == 1, outcome
        assert outcome.out == ""
        assert outcome.err.startswith("tollkeeper: ")
        assert outcome.err.endswith("\n")
        assert outcome.err.count("\n") == 1, outcome.err
        return outcome.err.removeprefix("tollkeeper: ").strip()

    def process_environment(self) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("TOLLKEEPER_")
        }
        return {**inherited, **self.environment}


@dataclass(frozen=True)
class Serving:
    process: psutil.Popen
    public: str
    operator: str
    log: Path

    def workers(self) -> list[psutil.Process]:
        return workers_of(self.process)

    def model(self, model: str, key: str) -> httpx2.Response:
        return httpx2.get(
            f"{self.public}/v1/models/{model}", headers={"Authorization": f"Bearer {key}"}
        )


@contextmanager
def serving(program: Program, *options: str) -> Iterator[Serving]:
    """Starts a gateway that accepts requests, and stops it at the end."""
    log = program.folder / f"serve-{time.monotonic_ns()}.log"
    with log.open("wb") as errors:
        process = psutil.Popen(
            program.line("serve", "--json", *options),
            cwd=program.folder,
            env=program.process_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        first = process.stdout.readline()
        assert first, log.read_text()
        addresses = json.loads(first)
        yield Serving(process, addresses["public"], addresses["operator"], log)
    finally:
        stop(process)


@contextmanager
def running_console(
    program: Program, *arguments: str, log: Path | None = None
) -> Iterator[tuple[psutil.Popen, dict[str, Any]]]:
    """Starts a console, and yields its process and the JSON document that it prints at its start."""
    log = log or program.folder / f"console-{time.monotonic_ns()}.log"
    with log.open("wb") as errors:
        process = psutil.Popen(
            program.line("console", "--json", *arguments),
            cwd=program.folder,
            env=program.process_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        first = process.stdout.readline()
        assert first, log.read_text()
        yield process, json.loads(first)
    finally:
        stop(process)


def stop(process: psutil.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
    process.stdout.close()


def postgres_runs(data_dir: Path) -> bool:
    """Returns whether a server on this data folder runs. A zombie process does not count."""
    try:
        pid = int((cluster_of(data_dir) / "postmaster.pid").read_text().splitlines()[0])
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except (FileNotFoundError, psutil.NoSuchProcess):
        return False


def eventually(happened: Callable[[], bool], *, within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def write_config(folder: Path, data_dir: Path, *, url: str = "", more: str = "") -> Path:
    """Writes settings with free ports, one model, and one backend that does not exist."""
    path = folder / "tollkeeper.toml"
    path.write_text(
        f"""
[server]
port = 0
[operator]
port = 0
[console]
port = 0
[database]
url = {json.dumps(url)}
data_dir = {json.dumps(str(data_dir))}
[[backends]]
name = "cluster"
kind = "openai"
urls = ["http://127.0.0.1:9/v1"]
{model_entry("example")}
{more}
"""
    )
    return path


def model_entry(model_id: str, *, backend: str = "cluster", price: str = "0.0000002") -> str:
    return f"""
[[models]]
id = {json.dumps(model_id)}
backend = {json.dumps(backend)}
upstream_model = "chat-small"
context_length = 32768
max_output_length = 8192
pricing = {{ prompt = {json.dumps(price)} }}
"""
