"""Tests that a metrics file has its disk space before it is written, or is moved to memory."""

import errno
import os
from pathlib import Path

import pytest

from tollkeeper.entry.metrics_files import ReservedFile


def test_the_space_is_reserved(tmp_path: Path) -> None:
    with ReservedFile(tmp_path / "counter_1.db", "a+b") as file:
        assert file.truncate(1 << 16) == 1 << 16
        status = os.fstat(file.fileno())
    assert status.st_size == 1 << 16
    # Some file systems reserve more than was asked for.
    assert status.st_blocks * 512 >= 1 << 16


@pytest.mark.parametrize("size", [0, 4096])
def test_without_space_it_continues_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def refuse(_descriptor: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "counter_1.db"
    with ReservedFile(path, "a+b") as file:
        if size:
            file.truncate(size)
            file.write(b"kept")
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        before = os.pread(file.fileno(), 1 << 16, 0)
        assert file.truncate(1 << 16) == 1 << 16
        assert os.pread(file.fileno(), 1 << 17, 0) == before.ljust(1 << 16, b"\0")
    # An empty file would make /metrics fail.
    assert path.exists() == bool(size)
