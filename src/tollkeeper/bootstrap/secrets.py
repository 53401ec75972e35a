"""The installation's secrets: named by the operator, or made once in the data folder."""

import os
from pathlib import Path

from tollkeeper.services.vault import MASTER_BYTES_MIN
from tollkeeper.settings import Settings, SettingsError, shown_variable


def master_secret(settings: Settings) -> bytes:
    """The installation's secret: named by the operator, or made once in the data folder."""
    secrets = settings.secrets
    if secrets.master_key_env:
        found = os.environ.get(secrets.master_key_env, "").encode()
        return _long_enough(
            found, f"secrets.master_key_env: {shown_variable(secrets.master_key_env)}"
        )
    if secrets.master_key_file:
        return _long_enough(read_secret(Path(secrets.master_key_file)), "secrets.master_key_file")
    return _generated_secret(settings.database.data_dir / "master.key")


def _long_enough(secret: bytes, source: str) -> bytes:
    if len(secret) < MASTER_BYTES_MIN:
        raise SettingsError(f"{source} must hold at least {MASTER_BYTES_MIN} characters.")
    return secret


def read_secret(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as exc:
        raise SettingsError(f"The secret file {path} cannot be read: {exc.strerror}.") from exc


def _generated_secret(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.touch(mode=0o600)
    fresh.write_bytes(os.urandom(MASTER_BYTES_MIN).hex().encode())
    try:
        # A link appears whole or not at all, and never over another process's secret.
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return _long_enough(read_secret(path), str(path))
