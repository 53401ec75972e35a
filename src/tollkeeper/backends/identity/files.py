"""Reads files that hold secrets. No message quotes their content."""

from pathlib import Path
from typing import Any

import msgspec

from tollkeeper.backends.credentials import read_key
from tollkeeper.backends.identity.failure import IdentityFailure

_BYTES_MAX = 256 << 10


def read_secret_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except OSError as exc:
        raise IdentityFailure(f"{path} cannot be read: {exc.strerror}") from None
    if len(content) > _BYTES_MAX:
        raise IdentityFailure(f"{path} is too large")
    return content


def read_json_file(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(read_secret_file(path), type=dict[str, Any])
    except (ValueError, RecursionError):
        raise IdentityFailure(f"{path} holds no JSON object") from None


def read_token_file(path: Path) -> str:
    """A token or a secret that is one word."""
    try:
        return read_key(path)
    except ValueError as exc:
        raise IdentityFailure(f"{path}: {exc}") from None


def text_of(document: dict[str, Any], name: str, path: Path) -> str:
    found = document.get(name)
    if not isinstance(found, str) or not found:
        raise IdentityFailure(f"{path} has no {name}")
    return found
