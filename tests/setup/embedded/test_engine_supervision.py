"""Tests that the engine's process starts in the background, restarts at the same address, and always ends."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.engine import (
    READY_WITHIN_S,
    SMALL,
    address_of,
    chat,
    engine_options,
    running_engine,
)
from tests.support.tables import each
from tollkeeper.setup.embedded import engine as engine_file
from tollkeeper.setup.embedded import engine as engine_module
from tollkeeper.setup.embedded.engine import EmbeddedEngine, EngineReport, ProcessState, read_report
from tollkeeper.setup.embedded.engine_address import EngineAddress

pytestmark = pytest.mark.engine
_GONE_WITHIN_S = 10.0
_ROOT = Path(__file__).parents[3]
_PARENT = """
import asyncio, sys
from tests.support.engine import READY_WITHIN_S, SMALL
from tollkeeper.setup.embedded.engine import EmbeddedEngine

async def main():
    engine = EmbeddedEngine(SMALL)
    await engine.start()
    while engine.pid is None:
        await asyncio.sleep(0.01)
    if "ready" in sys.argv:
        assert await engine.wait_ready(READY_WITHIN_S)
    print("pid", engine.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_becomes_ready_in_the_background() -> None:
    engine = EmbeddedEngine(SMALL)
    await engine.start()
    try:
        assert _state(engine) is ProcessState.STARTING
        assert engine.address is not None
        assert await engine.wait_ready(READY_WITHIN_S)
        assert _state(engine) is ProcessState.READY
        # The engine reports its own properties. The vocabulary is that of the packaged model.
        assert engine.report == EngineReport(
            context_length=1024,
            slots=2,
            tokenizer="BPE",
            vocabulary=49152,
            prefix_cache=True,
            prefix_cache_mib=256,
        )
        assert (
            "smollm2-135m-instruct, 2 slots of 1024 tokens, tokenizer BPE with 49152 tokens, "
            "prefix cache with 256 MiB in addition to the slots, loaded in "
        ) in engine.status.detail
        assert "The settings declare" not in engine.status.detail
    finally:
        await engine.close()


@pytest.mark.slow
async def test_a_model_with_less_context_says_so() -> None:
    async with running_engine(engine_options(parallel=1, context_length=16384)) as engine:
        assert engine.report is not None
        assert engine.report.context_length == 8192
        assert "1 slots of 8192 tokens" in engine.status.detail
        assert "The settings declare 16384" in engine.status.detail


@pytest.mark.slow
async def test_stop_leaves_no_process_and_may_be_repeated() -> None:
    async with running_engine() as engine:
        pid = engine.pid
        assert pid is not None
        await engine.close()
        assert not _lives(pid)
        assert _state(engine) is ProcessState.STOPPED
        await engine.close()


@pytest.mark.slow
async def test_stop_while_the_model_loads() -> None:
    engine = EmbeddedEngine(SMALL)
    await engine.start()
    await _until(lambda: engine.pid is not None)
    pid = engine.pid
    assert pid is not None
    await engine.close()
    assert not _lives(pid)


@pytest.mark.slow
async def test_a_killed_engine_comes_back_on_the_same_address() -> None:
    async with running_engine() as engine:
        before, pid = address_of(engine), engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await _until(lambda: _state(engine) is ProcessState.RESTARTING)
        assert "SIGKILL" in engine.status.detail
        assert await engine.wait_ready(READY_WITHIN_S)
        assert engine.address == before
        assert engine.pid != pid
        assert engine.restarts == 1
        assert (await chat(before, "Hello")).status == 200


@pytest.mark.slow
async def test_an_engine_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_PROBE_INTERVAL_S", 0.2)
    monkeypatch.setattr(engine_module, "_PROBE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(engine_module, "_STOP_TIMEOUT_S", 0.5)
    async with running_engine() as engine:
        pid = engine.pid
        assert pid is not None
        # A stopped process keeps its sockets open and ignores SIGTERM, so it must be killed.
        os.kill(pid, signal.SIGSTOP)
        await _until(lambda: _state(engine) is ProcessState.RESTARTING)
        assert "hung" in engine.status.detail
        assert not _lives(pid)
        assert await engine.wait_ready(READY_WITHIN_S)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["loading", "ready"])
async def test_the_engine_ends_with_a_killed_parent(moment: str) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PARENT, moment), stdout=asyncio.subprocess.PIPE, cwd=_ROOT
    )
    try:
        pid = await _told_pid(parent)
        assert _lives(pid)
    finally:
        parent.kill()
        await parent.wait()
    await _until(lambda: not _lives(pid))


@pytest.mark.slow
async def test_a_failing_start_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_RESTART_PAUSE_S", 0.01)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing more")
    engine = EmbeddedEngine(engine_options(model_path=str(broken)))
    await engine.start()
    try:
        await _until(lambda: _state(engine) is ProcessState.FAILED)
        assert "ended with code 3" in engine.status.detail
        assert not await engine.wait_ready(0.01)
    finally:
        await engine.close()


@pytest.mark.parametrize("package", [engine_file.ENGINE_PACKAGE, engine_file.WEIGHTS_PACKAGE])
async def test_a_missing_package_makes_the_engine_absent(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ENGINE_PACKAGE" if package == engine_file.ENGINE_PACKAGE else "WEIGHTS_PACKAGE"
    monkeypatch.setattr(engine_file, name, "package_that_nobody_has")
    engine = EmbeddedEngine(SMALL)
    await engine.start()
    assert _state(engine) is ProcessState.ABSENT
    assert "package_that_nobody_has is missing" in engine.status.detail
    assert "tollkeeper[embedded]" in engine.status.detail
    assert engine.address is None
    await engine.close()


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read"), (b"not a model", "is not a GGUF file")]
)
async def test_a_wrong_model_path_makes_the_engine_absent(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    engine = EmbeddedEngine(engine_options(model_path=str(path)))
    await engine.start()
    assert _state(engine) is ProcessState.ABSENT
    assert said in engine.status.detail
    assert "embedded.model_path" in engine.status.detail
    await engine.close()


def test_the_address_hides_its_credential() -> None:
    address = EngineAddress("http://127.0.0.1:1/v1", "very-secret")
    assert "very-secret" not in repr(address)


@each("line", [b"", b"{}", b"ready\n", b"\xff", b'{"slots": "four"}'])
def test_another_first_line_is_no_report(line: bytes) -> None:
    assert read_report(line) is None


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_GONE_WITHIN_S):
        while not condition():  # noqa: ASYNC110 - other processes cannot set an event
            await asyncio.sleep(0.02)


async def _told_pid(parent: asyncio.subprocess.Process) -> int:
    """Returns the engine's process id from the output of the parent, which may have other lines."""
    assert parent.stdout is not None
    async with asyncio.timeout(READY_WITHIN_S):
        while line := await parent.stdout.readline():
            if line.startswith(b"pid "):
                return int(line.split()[1])
    pytest.fail("the parent ended without an engine")


def _state(engine: EmbeddedEngine) -> ProcessState:
    """Returns the state. After a call, the type checker does not rely on an earlier value."""
    return engine.status.state
