"""Keeps a full disk from killing a worker: the Prometheus library maps its files without reserving space, so
a write on a full disk is a SIGBUS that ends the process with all its calls."""

import errno
import io
import os
import sys
from pathlib import Path

from prometheus_client import mmap_dict

from tollkeeper.core.runtime.late_log import LateLogger

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_log = LateLogger("tollkeeper.entry.worker")


def reserve_space() -> None:
    """Before the first metric is created. Only on Linux."""
    if sys.platform == "linux":
        vars(mmap_dict)["open"] = ReservedFile


class ReservedFile(io.FileIO):
    """Whenever the library sets the size. Without space it goes on in memory, and the operator listener lacks
    later changes."""

    def truncate(self, size: int | None = None) -> int:
        assert size is not None, "the library names the size"
        try:
            os.posix_fallocate(self.fileno(), 0, size)
        except OSError as exc:
            if exc.errno not in _NO_SPACE:
                return super().truncate(size)
            _log.error("there is no space for metrics", file=str(self.name), reason=exc.strerror)
            self._continue_in_memory(size)
        return size

    def _continue_in_memory(self, size: int) -> None:
        content = os.pread(self.fileno(), size, 0)
        memory = os.memfd_create("metrics")
        os.pwrite(memory, content, 0)
        os.ftruncate(memory, size)
        os.dup2(memory, self.fileno(), inheritable=False)
        os.close(memory)
        if not content:
            # The operator listener can't read an empty file.
            Path(str(self.name)).unlink(missing_ok=True)
