"""Tests that lines are written in order, that a reader who does not read blocks nobody, and that dropped
lines are counted."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tollkeeper.core.runtime import output
from tollkeeper.core.runtime.output import Output

_LINE = b"x" * 99 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Yields both ends of the smallest possible pipe."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_a_pipe_that_nobody_reads_blocks_nobody(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pipe
    monkeypatch.setattr(output, "_WAITING_BYTES_MAX", 100 * len(_LINE))
    lines, reported = Output(writer), list[int]()
    lines.on_dropped = reported.append
    began = time.monotonic()
    for number in range(1000):
        lines.write(b"%099d\n" % number)
    lines.flush(0.2)
    assert time.monotonic() - began < 2
    assert 800 <= lines.dropped < 1000
    read = b""
    while read.count(b"\n") < 1000 - lines.dropped:
        read += os.read(reader, 65536)
    lines.flush(10)
    numbers = [int(line) for line in read.splitlines()]
    assert numbers == sorted(set(numbers))
    assert numbers[:100] == list(range(100))
    assert reported == [lines.dropped]
    lines.write(b"again\n")
    assert os.read(reader, 100) == b"again\n"


def test_a_reader_that_has_ended_ends_nobody(pipe: tuple[int, int]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lines = Output(writer)
    lines.write(_LINE * 3)
    lines.flush(10)
    assert lines.dropped == 3
    os.close(writer)


def test_the_last_lines_are_written_when_a_process_ends() -> None:
    program = (
        "from tollkeeper.core.runtime.output import log_output\n"
        "for number in range(10_000):\n    log_output.write(b'%d\\n' % number)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=60
    )
    assert done.stderr.split() == [b"%d" % number for number in range(10_000)]


def test_a_process_ends_although_nobody_reads(pipe: tuple[int, int]) -> None:
    _, writer = pipe
    program = (
        "from tollkeeper.core.runtime.output import log_output\nlog_output.write(b'x\\n' * 10_000)"
    )
    subprocess.run([sys.executable, "-c", program], stderr=writer, check=True, timeout=20)


def test_a_fork_writes_its_own_lines_only(pipe: tuple[int, int]) -> None:
    program = (
        "import os\n"
        "from tollkeeper.core.runtime.output import log_output\n"
        "log_output.write(b'parent\\n')\n"
        "child = os.fork()\n"
        "if child:\n    os.waitpid(child, 0)\n"
        "else:\n    log_output.write(b'child\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=60
    )
    assert sorted(done.stderr.split()) == [b"child", b"parent"]
