"""Installs and runs the peers. Each peer is paused while other targets are measured."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from tests.journeys.clients.environments import NotInstalled

from bench.figures import WHOLE_ANSWER, Target, chat_requests
from bench.load import run_load
from bench.peer_programs import PEERS, Program
from bench.ports import free_port
from bench.programs import last_output_line, started
from bench.upstream import PACED

# The largest peer imports a thousand modules before it listens.
_START_WITHIN_S = 120


@dataclass(frozen=True, slots=True)
class Peers:
    """The peers that answer, and the reason why each of the other peers does not."""

    targets: list[Target]
    missing: dict[str, str]


@contextmanager
def running_peers(names: list[str], upstream: int, folder: Path) -> Iterator[Peers]:
    """Installs and starts the peers. Each peer is paused until it is measured."""
    peers = Peers([], {})
    with ExitStack() as stack:
        for name in names:
            home = folder / name
            home.mkdir()
            port = free_port()
            try:
                program = PEERS[name](port, upstream, home)
            except NotInstalled as exc:
                peers.missing[name] = f"could not be installed: {exc}"
                continue
            process = stack.enter_context(started(program.command, home, program.environment))
            target = _target(name, program, process, port)
            if _answers(target, process):
                pause(target)
                peers.targets.append(target)
            else:
                peers.missing[name] = f"could not be started: {last_output_line(home)}"
        yield peers


def _target(name: str, program: Program, process: subprocess.Popen[bytes], port: int) -> Target:
    if program.port_file is not None:
        port = _written_port(program.port_file, process)
    return Target(
        *(name, port, process.pid, {PACED: program.model}, [program.headers]),
        share=program.share,
        pausable=True,
        path=program.path,
    )


def _written_port(file: Path, process: subprocess.Popen[bytes]) -> int:
    """Returns the port that a peer has chosen, or 0 if the peer ends or writes no port in time."""
    until = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        if file.is_file():
            return int(file.read_text())
        time.sleep(0.1)
    return 0


@contextmanager
def awake(target: Target) -> Iterator[None]:
    """Lets a paused peer run until the context ends."""
    if not target.pausable:
        yield
        return
    os.killpg(target.pid, signal.SIGCONT)
    try:
        yield
    finally:
        pause(target)


def pause(target: Target) -> None:
    os.killpg(target.pid, signal.SIGSTOP)


def _answers(target: Target, process: subprocess.Popen[bytes]) -> bool:
    requests = chat_requests(target, PACED, stream=False)
    until = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        try:
            result = uvloop.run(
                run_load(target.port, requests, connections=1, count=1, whole=WHOLE_ANSWER)
            )
        except OSError:
            result = None
        if result is not None and not result.failures:
            return True
        time.sleep(0.5)
    return False
