"""Reads CPU time and memory of process trees from /proc."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree(pid: int) -> list[int]:
    """Returns the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        current = queue.pop()
        found.append(current)
        queue += children.get(current, [])
    return found


@dataclass(frozen=True, slots=True)
class Spent:
    """The CPU seconds and context switches of processes since they started."""

    cpu_s: float
    switches: int

    @classmethod
    def by(cls, pids: list[int]) -> Self:
        return cls(cpu_s(pids), sum(map(_switches, pids)))

    def __sub__(self, before: "Spent") -> "Spent":
        return Spent(self.cpu_s - before.cpu_s, self.switches - before.switches)


def cpu_s(pids: list[int]) -> float:
    """Returns the user and system time of these processes since they started."""
    total = 0
    for pid in pids:
        fields = _stat(pid)
        if fields is not None:
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def tree_cpu_s(pid: int) -> float:
    """Returns the CPU time of a process and all its descendants, including ended ones."""
    fields = _stat(pid)
    ended = 0 if fields is None else int(fields[13]) + int(fields[14])
    return cpu_s(tree(pid)) + ended / _TICKS


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def open_descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def resident_mb(pid: int) -> float:
    """Returns the memory of the largest process of a tree, so a supervisor is not added to its worker."""
    return max(map(resident_bytes, tree(pid))) / 1e6


def named(pids: list[int], word: str) -> list[int]:
    return [pid for pid in pids if word in _command(pid)]


def _switches(pid: int) -> int:
    """Returns the voluntary and involuntary context switches of all threads."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            lines = thread.read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return total


def _command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    """Returns the fields of /proc/PID/stat after the command's name (state, parent, and so on), or None if the
    process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
