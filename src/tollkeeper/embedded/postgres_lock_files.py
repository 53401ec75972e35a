"""The lock files that a crashed PostgreSQL leaves behind."""

import contextlib
from pathlib import Path

# Above the kernel's largest process id.
_PROCESS_OF_NOBODY = 2**22 + 1


def disown_zombie(lock_file: Path) -> None:
    """Lets PostgreSQL start although the dead server of this lock file is still a zombie.

    PostgreSQL replaces the lock files of a crashed server by itself. But a killed server stays in
    the process table until its parent reaps it, which the first process of a container may never
    do, and PostgreSQL takes a zombie for a running server. Only the process id in the file is
    changed: PostgreSQL needs the rest to find out whether children of the dead server still run.
    """
    with contextlib.suppress(FileNotFoundError):
        process, newline, rest = lock_file.read_text().partition("\n")
        if _is_zombie(process):
            lock_file.write_text(f"{_PROCESS_OF_NOBODY}{newline}{rest}")


def _is_zombie(process: str) -> bool:
    try:
        status = Path(f"/proc/{int(process)}/stat").read_text()
    except (ValueError, OSError):
        return False
    # The state follows the program's name, which is in parentheses and may contain some itself.
    return status.rpartition(")")[2].split()[0] == "Z"
