"""Reads secrets, and creates a master secret if none is configured."""

import os
from pathlib import Path

from tollkeeper.core.runtime.vault import MASTER_BYTES_MIN
from tollkeeper.setup.settings import Place, Settings, SettingsError, shown_variable


def master_secret(settings: Settings) -> bytes:
    """Otherwise the one in the data folder, created once."""
    source = settings.secrets.master_key
    if source:
        at = ("secrets", "master_key")
        return _long_enough(read_source(source, at), source.partition(":")[2], at)
    return _generated_secret(settings.database.data_dir / "master.key")


def _long_enough(secret: bytes, source: str, at: Place) -> bytes:
    if len(secret) < MASTER_BYTES_MIN:
        raise SettingsError(f"{source} must have at least {MASTER_BYTES_MIN} characters.", at)
    return secret


def secret_variable(name: str, at: Place) -> str:
    """Raises SettingsError if it's missing or empty. `at` names the setting in errors."""
    value = os.environ.get(name, "")
    if not value:
        raise SettingsError(f"{shown_variable(name)} is not set", at)
    return value


def read_source(source: str, at: Place) -> bytes:
    """`source` is `env:` with a name, or `file:` with a path."""
    kind, _, name = source.partition(":")
    return secret_variable(name, at).encode() if kind == "env" else read_secret(Path(name), at)


def read_secret(path: Path, at: Place) -> bytes:
    """Without white space at its ends."""
    try:
        return path.read_bytes().strip()
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}.", at) from exc


def _generated_secret(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_bytes(os.urandom(MASTER_BYTES_MIN).hex().encode())
    try:
        # A link makes the whole file appear at once. It fails if a secret exists, of an earlier start or
        # another process, and that one is used.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    at = ("database", "data_dir")
    return _long_enough(read_secret(path, at), str(path), at)
