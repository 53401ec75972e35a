"""The keys of backends, from the environment or a file."""

import os
from pathlib import Path

from tollkeeper.backends.credentials import read_key
from tollkeeper.settings import BackendSettings, SettingsError, shown_variable


def api_key_of(declared: BackendSettings) -> str | None:
    """None where the backend has no key. Raises SettingsError where the key cannot be had."""
    if declared.api_key_env:
        value = os.environ.get(declared.api_key_env, "")
        if not value:
            raise SettingsError(
                f"backends {declared.name!r}: api_key_env: "
                f"{shown_variable(declared.api_key_env)} is not set."
            )
        return value
    if declared.api_key_file:
        try:
            return read_key(Path(declared.api_key_file))
        except ValueError as exc:
            raise SettingsError(
                f"backends {declared.name!r}: api_key_file: {declared.api_key_file}: {exc}."
            ) from None
    return None
