"""Provides the credentials of backends: the headers that prove to a provider who pays for a call.

If the headers can change while the gateway runs (`fixed_headers` is None), the gateway calls
`headers_for` before every request. A key from a file is read again if the file has changed.
Credentials with expiring tokens or with signatures are in `backends/identity` and have the same
interface. `headers_for` gets the request, because a signature covers the request. `headers_for` may
wait for a token.

No message, log line or `repr` of this module contains a key.
"""

from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from tollkeeper.runtime.late_log import LateLogger

# The maximum number of bytes that are read from a key file.
_KEY_BYTES_MAX = 64 << 10
_log = LateLogger("tollkeeper.backends")


class CredentialKind(StrEnum):
    """Lists the kinds of credentials: the header that contains the key, or the gateway's identity at
    a provider. The settings use the same values."""

    BEARER = "bearer"
    X_API_KEY = "x-api-key"
    API_KEY = "api-key"
    X_GOOG_API_KEY = "x-goog-api-key"
    # Identities: access tokens of Google or Entra, and signatures of AWS.
    GOOGLE = "google"
    ENTRA = "entra"
    SIGV4 = "sigv4"


class OutgoingRequest(msgspec.Struct, frozen=True, gc=False):
    """Contains the parts of a request that a signature covers."""

    host: str
    path: str
    body: bytes


class Credential(Protocol):
    """Provides the headers that prove to a provider who pays for a request."""

    @property
    def fixed_headers(self) -> bytes | None:
        """Returns the header lines if they are the same for every request; None if `headers_for`
        has to be called."""
        ...

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        """Returns the header lines for a request, each with CRLF at its end. `deadline` is a time of
        the event loop's clock.

        Raises domain errors. Their attribute `charged` is False, because the request was not sent.
        """
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Returns the current and previous keys, which no message to a client may contain."""
        ...

    def doubt(self) -> None:
        """Records that the backend has rejected the credential. Does not wait."""
        ...

    def start(self) -> None:
        """Begins the credential's background work. Does not wait."""
        ...

    async def close(self) -> None: ...


class _WithoutBackgroundWork:
    """Implements the methods of `Credential` for credentials without background work. The headers are
    fixed, unless a subclass overrides `headers_for`."""

    fixed_headers: bytes | None = b""

    async def headers_for(self, request: OutgoingRequest, *, deadline: float) -> bytes:
        assert self.fixed_headers is not None
        return self.fixed_headers

    def doubt(self) -> None: ...

    def start(self) -> None: ...

    async def close(self) -> None: ...


class NoCredential(_WithoutBackgroundWork):
    """Adds no header."""

    secrets: tuple[str, ...] = ()


class FixedKey(_WithoutBackgroundWork):
    """Represents a key that stays the same as long as the process runs."""

    def __init__(self, kind: CredentialKind, key: str) -> None:
        self.fixed_headers = key_header(kind, key)
        self.secrets = (key,)


class KeyInFile(_WithoutBackgroundWork):
    """Represents a key in a file. After a change of the file, the next call reads the file again.
    While the file is missing or contains no key, for example during a key rotation, the last key
    stays in use."""

    fixed_headers = None

    def __init__(self, kind: CredentialKind, path: Path, key: str) -> None:
        """Starts with `key`, which is the content of the file when the settings were read."""
        self._kind = kind
        self._path = path
        self._key = key
        self._headers = key_header(kind, key)
        self._previous_key: str | None = None
        # The file's version (see `version_of`) at the last read. None, so that the first call reads the
        # file, which may have changed since the settings were read.
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
    """Creates the credential for a key. If the key comes from a file, `key` is the content of the
    file when the settings were read."""
    if key is None:
        return NoCredential()
    return KeyInFile(kind, Path(file), key) if file else FixedKey(kind, key)


def key_header(kind: CredentialKind, key: str) -> bytes:
    """Returns the header line with the key. Raises ValueError for a key that is not a valid header
    value."""
    if not is_header_text(key):
        raise ValueError("the API key must be printable ASCII without spaces")
    if kind in (CredentialKind.BEARER, CredentialKind.GOOGLE, CredentialKind.ENTRA):
        return f"authorization: Bearer {key}\r\n".encode("ascii")
    return f"{kind.value}: {key}\r\n".encode("ascii")


def read_key(path: Path) -> str:
    """Reads the key in a file. Raises ValueError if the file cannot be read or contains no valid key. The
    message calls the file "it", because the caller adds the name of the file. The message does not
    quote the content of the file."""
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
    """Returns a value that changes if the file is replaced or written to. The value is empty if
    there is no file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
