"""Provides the credentials of backends, which prove who pays for a call.

A credential returns its headers before every call, so that a key can change while the gateway runs:
a key from a file is read again when the file has changed. Credentials with expiring tokens or
signatures (`backends/identity`) have the same interface, which sees the request and may wait.

No message, log line or representation of an object here contains a key.
"""

from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from tollkeeper.runtime.late_log import LateLogger

_KEY_BYTES_MAX = 64 << 10
_log = LateLogger("tollkeeper.backends")


class CredentialKind(StrEnum):
    """Names the header that carries the key, or the kind of the gateway's identity. The values are
    those of the settings."""

    BEARER = "bearer"
    X_API_KEY = "x-api-key"
    API_KEY = "api-key"
    X_GOOG_API_KEY = "x-goog-api-key"
    # Access tokens of Google and Entra, and signatures of AWS.
    GOOGLE = "google"
    ENTRA = "entra"
    SIGV4 = "sigv4"


class OutgoingRequest(msgspec.Struct, frozen=True, gc=False):
    """Contains the parts of a request that a signature covers."""

    host: str
    path: str
    body: bytes


class Credential(Protocol):
    @property
    def fixed_headers(self) -> bytes | None:
        """Returns the header lines if they are the same for every request; None if `headers_for`
        has to be called."""
        ...

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        """Returns header lines, each ended by CRLF. `deadline` is a time of the event loop's clock.

        Raises domain errors, none of which is charged, because nothing was sent.
        """
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Returns the current and previous keys, which no message to a client may contain."""
        ...

    def doubt(self) -> None:
        """Handles a credential that the backend has rejected. Does not wait."""
        ...

    def start(self) -> None:
        """Begins the credential's background work. Does not wait."""
        ...

    async def close(self) -> None: ...


class _Passive:
    """Has no background work."""

    fixed_headers: bytes | None = b""

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        assert self.fixed_headers is not None
        return self.fixed_headers

    def doubt(self) -> None: ...

    def start(self) -> None: ...

    async def close(self) -> None: ...


class NoCredential(_Passive):
    secrets: tuple[str, ...] = ()


class FixedKey(_Passive):
    """Represents a key that stays the same as long as the process runs."""

    def __init__(self, kind: CredentialKind, key: str) -> None:
        self.fixed_headers = key_header(kind, key)
        self.secrets = (key,)


class KeyInFile(_Passive):
    """Represents a key in a file. It is read again before the next call after the file has changed. While
    the file is missing or contains no key, for example during a rotation, the last key stays in
    use."""

    fixed_headers = None

    def __init__(self, kind: CredentialKind, path: Path, key: str) -> None:
        """`key` is the file's content when the gateway started."""
        self._kind = kind
        self._path = path
        self._key = key
        self._headers = key_header(kind, key)
        self._previous: str | None = None
        # None, because the file may have changed since `key` was read.
        self._version: tuple[int, ...] | None = None

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        version = version_of(self._path)
        if version != self._version:
            self._version = version
            self._read_again()
        return self._headers

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self._key,) if self._previous is None else (self._key, self._previous)

    def _read_again(self) -> None:
        try:
            key = read_key(self._path)
        except ValueError as exc:
            _log.warning("credential kept", file=str(self._path), reason=str(exc))
            return
        if key != self._key:
            self._previous, self._key = self._key, key
            self._headers = key_header(self._kind, key)
            _log.info("credential changed", file=str(self._path))


def open_credential(kind: CredentialKind, key: str | None, file: str | None) -> Credential:
    """Opens the credential. `key` is the key itself or, with a file, the file's initial content."""
    if key is None:
        return NoCredential()
    return FixedKey(kind, key) if file is None else KeyInFile(kind, Path(file), key)


def key_header(kind: CredentialKind, key: str) -> bytes:
    """Raises ValueError for a key that is not a valid header value."""
    if not is_header_text(key):
        raise ValueError("the API key must be printable ASCII without spaces")
    if kind in (CredentialKind.BEARER, CredentialKind.GOOGLE, CredentialKind.ENTRA):
        return f"authorization: Bearer {key}\r\n".encode("ascii")
    return f"{kind.value}: {key}\r\n".encode("ascii")


def read_key(path: Path) -> str:
    """Reads the key in a file. Raises ValueError, whose message does not quote the file's
    content."""
    try:
        with path.open("rb") as file:
            content = file.read(_KEY_BYTES_MAX).strip()
    except OSError as exc:
        raise ValueError(f"it cannot be read: {exc.strerror}") from None
    try:
        key = content.decode("ascii")
    except UnicodeDecodeError:
        key = ""
    if not is_header_text(key):
        raise ValueError("it holds no key of printable ASCII without spaces")
    return key


def is_header_text(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def version_of(path: Path) -> tuple[int, ...]:
    """Returns a value that changes when the file is replaced or written to; empty without a
    file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
