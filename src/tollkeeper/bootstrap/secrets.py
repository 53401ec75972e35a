"""Reads the installation's secrets, and makes the master secret if the operator names none."""

import os
from pathlib import Path

from tollkeeper.services.vault import MASTER_BYTES_MIN
from tollkeeper.settings import Settings, SettingsError, shown_variable


def master_secret(settings: Settings) -> bytes:
    """The secret that the settings name, or else the one in the data folder, which is made once."""
    secrets = settings.secrets
    if secrets.master_key_env:
        value = os.environ.get(secrets.master_key_env, "").encode()
        return _long_enough(
            value, f"secrets.master_key_env: {shown_variable(secrets.master_key_env)}"
        )
    if secrets.master_key_file:
        name = "secrets.master_key_file"
        return _long_enough(read_secret(Path(secrets.master_key_file), name), name)
    return _generated_secret(settings.database.data_dir / "master.key")


def _long_enough(secret: bytes, source: str) -> bytes:
    if len(secret) < MASTER_BYTES_MIN:
        raise SettingsError(f"{source} must hold at least {MASTER_BYTES_MIN} characters.")
    return secret


def read_secret(path: Path, setting: str) -> bytes:
    """`setting` is the name of the setting that leads to the file, for the message of a failure."""
    try:
        return path.read_bytes().strip()
    except OSError as exc:
        raise SettingsError(f"{setting}: {path} cannot be read: {exc.strerror}.") from exc


def _generated_secret(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_bytes(os.urandom(MASTER_BYTES_MIN).hex().encode())
    try:
        # A link makes the complete file visible in one step, and fails if another process has made
        # its secret meanwhile.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return _long_enough(read_secret(path, "database.data_dir"), str(path))
