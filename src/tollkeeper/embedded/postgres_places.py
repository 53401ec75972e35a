"""Locates a data folder's cluster and its socket.

The cluster is in the data folder. If the program runs as root and PostgreSQL's account cannot enter
the data folder, the cluster is in a folder that the program creates, and the file
`postgres.location` in the data folder names it.
"""

import hashlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from shlex import quote

from tollkeeper.domain.errors import Unavailable
from tollkeeper.embedded.postgres_account import Account, owner_ids
from tollkeeper.embedded.postgres_folders import (
    MANAGED_FOLDER,
    check_private_folder,
    make_private_folder,
    managed_folder,
)

_CLUSTER = "postgres"
_LOCATION = "postgres.location"
# A socket's path may have 107 bytes. The rest is for the socket's name.
_SOCKET_FOLDER_BYTES_MAX = 80


def find_cluster(data_dir: Path, account: Account | None) -> Path:
    """Returns the cluster of the resolved `data_dir`, which may not exist yet. `account` runs
    PostgreSQL if the program runs as root."""
    inside = (data_dir / _CLUSTER).resolve()
    location = data_dir / _LOCATION
    named = location.read_text().strip() if location.exists() else None
    if account is None:
        if named is not None:
            raise Unavailable(
                f"The embedded database of {data_dir} was made by root and lives in {named}. "
                "Start tollkeeper as root, or set database.data_dir or database.url."
            )
        return inside
    if named is None and account.can_enter(inside.parent):
        return inside
    outside = managed_folder() / _short_hash(data_dir)
    if named is None and is_cluster(inside):
        raise Unavailable(
            f"The embedded database is in {inside}, but the account {account.name}, which runs "
            f"PostgreSQL, cannot enter it. Open every folder on the way to it (chmod o+x), "
            "such as this one. Run: "
            f"chmod o+x {quote(str(inside.parent))}"
        )
    if named not in (None, str(outside)):
        raise Unavailable(
            f"{location} names {named}, which is the database of another data folder. If this folder "
            f"was moved, stop every tollkeeper that uses it and run: mv {named} {outside} && "
            f"echo {outside} > {quote(str(location))} - if it was copied, run this to begin with an "
            f"empty database: rm {quote(str(location))}"
        )
    if is_cluster(outside) is (named is None):
        raise Unavailable(
            f"{location} and the database in {outside} belong together, but only one of them is "
            "there. Restore the other one, or remove both to begin with an empty database. Run: "
            f"rm -rf {outside} {quote(str(location))}"
        )
    return outside


def is_cluster(folder: Path) -> bool:
    return (folder / "PG_VERSION").exists()


def is_outside(cluster: Path) -> bool:
    """Tells whether the cluster is in the folder that the program creates."""
    return cluster.parent == MANAGED_FOLDER


def remember_cluster(data_dir: Path, cluster: Path) -> None:
    """Writes the cluster's path if it is not in the data folder."""
    location = data_dir / _LOCATION
    if not is_outside(cluster):
        return
    fresh = location.with_name(f"{location.name}.new")
    fresh.write_text(f"{cluster}\n")
    fresh.rename(location)


def unfinished_cluster(cluster: Path) -> Path:
    """Returns the temporary path for creating a cluster. Each attempt has another one, because the
    programs of a killed attempt may continue for a while."""
    return cluster.with_name(f"{cluster.name}.unfinished-{secrets.token_hex(4)}")


def remove_unfinished(cluster: Path) -> None:
    """Removes the remains of killed attempts to create this cluster."""
    for left in cluster.parent.glob(f"{cluster.name}.unfinished-*"):
        if not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)


def prepare_socket_folder(cluster: Path, account: Account | None) -> Path:
    """Returns the folder of the server's socket: the cluster itself, or a private one if that path
    is too long. It is checked before a connection is opened, because its name can be guessed."""
    if len(os.fsencode(cluster)) <= _SOCKET_FOLDER_BYTES_MAX:
        return cluster
    temporary = Path(tempfile.gettempdir()).resolve()
    if account is not None and not account.can_enter(temporary):
        raise Unavailable(
            f"The path {cluster} is too long for a socket, and the account {account.name} cannot "
            f"enter {temporary}. Set TMPDIR to a folder that it can enter, or use a shorter "
            "database.data_dir."
        )
    uid, gid = owner_ids(account)
    folder = temporary / f"tollkeeper-{_short_hash(cluster)}"
    make_private_folder(folder, uid, gid)
    check_private_folder(folder, uid)
    return folder


def _short_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
