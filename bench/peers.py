"""Installs and runs the peers. They have environments of their own and are not in the lock."""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from tests.journeys.clients.environments import NotInstalled, node_environment, python_environment

from bench.figures import WHOLE_ANSWER, Target, chat_requests
from bench.load import run_load
from bench.ports import free_port
from bench.upstream import PACED

_HERE = Path(__file__).parent
_LOCKS = _HERE / "locks"
PORTKEY_PROJECT = _HERE / "portkey"
# The largest peer imports a thousand modules before it listens.
_START_WITHIN_S = 120
_STOP_WITHIN_S = 15
_REASON_LENGTH_MAX = 200


@dataclass(frozen=True, slots=True)
class Program:
    """The command and the environment of an installed peer, and the headers of requests to it."""

    command: list[str | Path]
    environment: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Peers:
    """The peers that answer, and for each other one the reason why it does not."""

    targets: list[Target]
    missing: dict[str, str]


def _sglang(port: int, upstream: int, _folder: Path) -> Program:
    """The SGLang Model Gateway, written in Rust. It only routes."""
    command: list[str | Path] = [
        *(python_environment("sglang", _LOCKS), "-m", "sglang_router.launch_router"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--worker-urls", f"http://127.0.0.1:{upstream}"),
        *("--disable-health-check", "--log-level", "error"),
    ]
    return Program(command)


_LITELLM_CONFIG = """
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: http://127.0.0.1:{upstream}/v1
      api_key: unused
litellm_settings:
  set_verbose: false
  request_timeout: 600
"""


def _litellm(port: int, upstream: int, folder: Path) -> Program:
    """The LiteLLM proxy without a database, with the production settings of its documentation."""
    program = python_environment("litellm", _LOCKS).with_name("litellm")
    config = folder / "litellm.yaml"
    config.write_text(_LITELLM_CONFIG.format(model=PACED, upstream=upstream))
    # LiteLLM does not start without a key of this form.
    key = f"sk-{secrets.token_hex(24)}"
    return Program(
        [
            *(program, "--config", config, "--num_workers", "1"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ],
        {
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_MASTER_KEY": key,
            # Use the price list of the package. Otherwise LiteLLM would download the newest one.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        {"authorization": f"Bearer {key}"},
        share=0.025,
    )


def _portkey(port: int, upstream: int, _folder: Path) -> Program:
    """The Portkey gateway, written for Node. Headers of each request name the upstream."""
    node = node_environment(PORTKEY_PROJECT, "portkey")
    gateway = node.project / "node_modules" / "@portkey-ai" / "gateway" / "build"
    return Program(
        [
            *(node.program, "--require", PORTKEY_PROJECT / "loopback.cjs"),
            *(gateway / "start-server.js", f"--port={port}", "--headless"),
        ],
        {"NODE_ENV": "production"},
        {
            "authorization": "Bearer unused",
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": f"http://127.0.0.1:{upstream}/v1",
        },
        share=0.25,
    )


PEERS: dict[str, Callable[[int, int, Path], Program]] = {
    "sglang": _sglang,
    "portkey": _portkey,
    "litellm": _litellm,
}


@contextmanager
def running_peers(names: list[str], upstream: int, folder: Path) -> Iterator[Peers]:
    """Installs and starts the peers. Each is paused until it is measured."""
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
            process = stack.enter_context(_started(program, home))
            target = Target(
                *(name, port, process.pid, {PACED: PACED}, [program.headers]),
                share=program.share,
                pausable=True,
            )
            if _answers(target, process):
                pause(target)
                peers.targets.append(target)
            else:
                peers.missing[name] = f"could not be started: {_last_output_line(home)}"
        yield peers


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


@contextmanager
def _started(program: Program, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a peer in a process group of its own. Of our environment it gets only PATH."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **program.environment}
    with (
        (home / "output").open("wb") as output,
        subprocess.Popen(
            program.command,
            env=environment,
            cwd=home,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stops a peer, which may be paused or already gone."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        _signal_group(process, number)
    try:
        process.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


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


def _last_output_line(home: Path) -> str:
    lines = (home / "output").read_text(errors="replace").split("\n")
    output = [line.strip() for line in lines if line.strip()]
    return output[-1][:_REASON_LENGTH_MAX] if output else "it does not answer, and says nothing"
