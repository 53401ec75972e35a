"""Credentials of backends: headers that tell a provider who pays. If they can change while the
gateway runs (`fixed_headers` is None), `headers_for` is called before every request, which a
signature covers; it may wait for a token. A changed key file is read again. Tokens and signatures
are in `providers/identity`. No message, log line or `repr` here contains a key."""

from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from tollkeeper.core.runtime.late_log import LateLogger

_KEY_BYTES_MAX = 64 << 10
_log = LateLogger("tollkeeper.providers")


class CredentialKind(StrEnum):
    """A key's header, or a kind of identity. The settings use these values."""

    BEARER = "bearer"
    X_API_KEY = "x-api-key"
    API_KEY = "api-key"
    X_GOOG_API_KEY = "x-goog-api-key"
    # Access tokens of Google or Entra, and signatures of AWS.
    GOOGLE = "google"
    ENTRA = "entra"
    SIGV4 = "sigv4"


class OutgoingRequest(msgspec.Struct, frozen=True, gc=False):
    """What a signature covers."""

    host: str
    path: str
    body: bytes


class Credential(Protocol):
    @property
    def fixed_headers(self) -> bytes | None:
        """If they're the same for every request; None if `headers_for` has to be called."""
        ...

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        """Each line ends with CRLF. `deadline` is a time of the event loop's clock. Raises domain
        errors with `charged` False, because nothing was sent."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Current and previous keys, which no message to a client may contain."""
        ...

    def doubt(self) -> None:
        """The backend has rejected the credential. Doesn't wait."""
        ...

    def start(self) -> None:
        """Background work. Doesn't wait."""
        ...

    async def close(self) -> None: ...


class _WithoutBackgroundWork:
    """With fixed headers, unless a subclass overrides `headers_for`."""

    fixed_headers: bytes | None = b""

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        assert self.fixed_headers is not None
        return self.fixed_headers

    def doubt(self) -> None: ...

    def start(self) -> None: ...

    async def close(self) -> None: ...


class NoCredential(_WithoutBackgroundWork):
    secrets: tuple[str, ...] = ()


class FixedKey(_WithoutBackgroundWork):
    def __init__(self, kind: CredentialKind, key: str) -> None:
        self.fixed_headers = key_header(kind, key)
        self.secrets = (key,)


class KeyInFile(_WithoutBackgroundWork):
    """Read again after a change. While the file is missing or has no key, as during a rotation, the
    last key stays in use."""

    fixed_headers = None

    def __init__(self, kind: CredentialKind, path: Path, key: str) -> None:
        """`key` is what the settings found in the file."""
        self._kind = kind
        self._path = path
        self._key = key
        self._headers = key_header(kind, key)
        self._previous_key: str | None = None
        # At the last read (`version_of`). None, because the file may have changed since the
        # settings were read.
        self._version: tuple[int, ...] | None = None

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        version = version_of(self._path)
        if version != self._version:
            self._version = version
            self._read_again()
        return self._headers

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self._key,) if self._previous_key is None else (self._key, self._previous_key)

    def _read_again(self) -> None:
        try:
            key = read_key(self._path)
        except ValueError as exc:
            _log.warning("credential kept", file=str(self._path), reason=str(exc))
            return
        if key != self._key:
            self._previous_key, self._key = self._key, key
            self._headers = key_header(self._kind, key)
            _log.info("credential changed", file=str(self._path))


def open_credential(kind: CredentialKind, key: str | None, file: str) -> Credential:
    """`key` is what the settings found in `file`, if there's one."""
    if key is None:
        return NoCredential()
    return KeyInFile(kind, Path(file), key) if file else FixedKey(kind, key)


def key_header(kind: CredentialKind, key: str) -> bytes:
    """Raises ValueError for a key that isn't a valid header value."""
    if not is_header_text(key):
        raise ValueError("the API key must be printable ASCII without spaces")
    if kind in (CredentialKind.BEARER, CredentialKind.GOOGLE, CredentialKind.ENTRA):
        return f"authorization: Bearer {key}\r\n".encode("ascii")
    return f"{kind.value}: {key}\r\n".encode("ascii")


def read_key(path: Path) -> str:
    """Raises ValueError for an unreadable file or no valid key. The message says "it" for the file,
    which the caller names, and quotes nothing."""
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
        raise ValueError(
            "it contains no key, or a key with spaces or characters that are not printable ASCII"
        )
    return key


def is_header_text(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def version_of(path: Path) -> tuple[int, ...]:
    """Changes if the file is replaced or written to. Empty if there's none."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
