"""Finds the cluster (PostgreSQL's data folder) and the socket for a data folder. The cluster is inside,
unless the gateway runs as root and PostgreSQL's account can't enter: then it's below `MANAGED_FOLDER`, and
`postgres.location` has its path."""

import hashlib
import os
import re
import secrets
import shutil
import tempfile
from pathlib import Path
from shlex import quote

from tollkeeper.core.errors import Unavailable
from tollkeeper.setup.embedded.postgres_account import Account, owner_ids
from tollkeeper.setup.embedded.postgres_folders import (
    MANAGED_FOLDER,
    check_private_folder,
    create_private_folder,
    managed_folder,
)

_CLUSTER = "postgres"
_LOCATION = "postgres.location"
# A socket's path has at most 107 bytes; 27 are for its file name.
_SOCKET_FOLDER_BYTES_MAX = 80
# The driver splits at commas, and the server's option is in single quotes.
_UNSUITABLE_FOR_SOCKET = frozenset(",'")
# `pg_ctl` passes the path to a shell in double quotes.
_INTERPRETED_BY_SHELL = re.compile(r'["$`]')


def find_cluster(data_dir: Path, account: Account | None) -> Path:
    """It needn't exist yet. `data_dir` is resolved. `account` is None unless the gateway runs as root."""
    cluster = _find_cluster(data_dir, account)
    if found := _INTERPRETED_BY_SHELL.search(str(cluster)):
        raise Unavailable(
            f"The embedded PostgreSQL cannot use the folder {cluster}: its path contains {found[0]}. "
            "Set database.data_dir to another folder."
        )
    return cluster


def _find_cluster(data_dir: Path, account: Account | None) -> Path:
    inside = (data_dir / _CLUSTER).resolve()
    location = data_dir / _LOCATION
    recorded_path = location.read_text().strip() if location.exists() else None
    if account is None:
        if recorded_path is not None:
            raise Unavailable(
                f"The embedded database of {data_dir} was created by root and is in {recorded_path}. "
                "Start tollkeeper as root, or set database.data_dir or database.url."
            )
        return inside
    if recorded_path is None and account.can_enter(inside.parent):
        return inside
    outside = managed_folder() / _short_hash(data_dir)
    if recorded_path is None and is_cluster(inside):
        raise Unavailable(
            f"The embedded database is in {inside}, but the account {account.name}, which runs "
            f"PostgreSQL, cannot enter it. Allow that account to enter every folder on this path. "
            f"For the data folder, run: `chmod o+x {quote(str(inside.parent))}`"
        )
    if recorded_path not in (None, str(outside)):
        raise Unavailable(
            f"{location} names {recorded_path}, which is the database of another data folder. If this data "
            f"folder was moved, stop every tollkeeper that uses it and run: `mv {recorded_path} {outside} && "
            f"echo {outside} > {quote(str(location))}`. If this data folder was copied, begin with an "
            f"empty database. Run: `rm {quote(str(location))}`"
        )
    if is_cluster(outside) is (recorded_path is None):
        raise Unavailable(
            f"{location} and the database in {outside} belong together, but only one of them is "
            "there. Restore the missing one, or remove both to begin with an empty database. Run: "
            f"`rm -rf {outside} {quote(str(location))}`"
        )
    return outside


def is_cluster(folder: Path) -> bool:
    return (folder / "PG_VERSION").exists()


def has_cluster(data_dir: Path) -> bool:
    return is_cluster(data_dir / _CLUSTER) or (data_dir / _LOCATION).exists()


def is_outside(cluster: Path) -> bool:
    """Below `MANAGED_FOLDER`."""
    return cluster.parent == MANAGED_FOLDER


def remember_cluster(data_dir: Path, cluster: Path) -> None:
    """If it's outside the data folder."""
    location = data_dir / _LOCATION
    if not is_outside(cluster):
        return
    temporary = location.with_name(f"{location.name}.new")
    temporary.write_text(f"{cluster}\n")
    temporary.rename(location)


def unfinished_cluster(cluster: Path) -> Path:
    """A new one for each attempt: initdb may outlive a killed parent."""
    return cluster.with_name(f"{cluster.name}.unfinished-{secrets.token_hex(4)}")


def remove_unfinished(cluster: Path) -> None:
    """Of earlier attempts."""
    for folder in cluster.parent.glob(f"{cluster.name}.unfinished-*"):
        if not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)


def prepare_socket_folder(cluster: Path, account: Account | None) -> Path:
    """The cluster or, if its path is too long or has a comma or an apostrophe, a private folder in the
    system's temporary one, which is checked because others can guess its name."""
    is_short = len(os.fsencode(cluster)) <= _SOCKET_FOLDER_BYTES_MAX
    if is_short and _UNSUITABLE_FOR_SOCKET.isdisjoint(str(cluster)):
        return cluster
    temporary = Path(tempfile.gettempdir()).resolve()
    if account is not None and not account.can_enter(temporary):
        raise Unavailable(
            f"The path {cluster} is too long for a socket or contains a comma or an apostrophe, and the "
            f"account {account.name} cannot enter {temporary}. Set TMPDIR to a folder that it can enter, "
            "or use another database.data_dir."
        )
    uid, gid = owner_ids(account)
    folder = temporary / f"tollkeeper-{_short_hash(cluster)}"
    create_private_folder(folder, uid, gid)
    check_private_folder(folder, uid)
    return folder


def _short_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
