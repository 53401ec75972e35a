"""The keys of backends, from the environment or a file."""

from pathlib import Path

from tollkeeper.backends.credentials import read_key
from tollkeeper.bootstrap.secrets import secret_variable
from tollkeeper.settings import BackendSettings, SettingsError


def api_key_of(declared: BackendSettings) -> str | None:
    """None where the backend has no key. Raises SettingsError where the key cannot be had."""
    if declared.api_key_env:
        at = ("backends", declared.name, "api_key_env")
        return secret_variable(declared.api_key_env, at)
    if declared.api_key_file:
        try:
            return read_key(Path(declared.api_key_file))
        except ValueError as exc:
            at = ("backends", declared.name, "api_key_file")
            raise SettingsError(f"{declared.api_key_file}: {exc}.", at) from None
    return None
