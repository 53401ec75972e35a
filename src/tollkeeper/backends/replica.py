"""Represents one replica (one address of a backend): its connections, the headers of requests to it,
its health, and its tokenizer."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from tollkeeper.backends.config import BackendConfig
from tollkeeper.backends.credentials import Credential, OutgoingRequest
from tollkeeper.backends.health import EjectionRule, ReplicaHealth
from tollkeeper.backends.tokenizers import TokenizeRequest, read_count, tokenize_request
from tollkeeper.backends.transport.http1 import Connection, HttpFailure
from tollkeeper.backends.transport.pool import open_pool
from tollkeeper.backends.wires import wire_for
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import Call

JSON = b"application/json"
# The maximum size of the answer to a token count request.
_COUNT_BYTES_MAX = 1 << 20
_USER_AGENT = "tollkeeper"
# The maximum number of cached `_PreparedHeaders`. A model with its own path needs two: one for
# streams, one for JSON.
_HEADERS_MAX = 4096


class _PreparedHeaders(NamedTuple):
    """Contains the header lines that are the same for every request with the same path and accepted
    content type."""

    path: str
    # The request line and the header lines, as they are sent, with those of a fixed credential.
    encoded: bytes


class Replica:
    """Represents one address of a backend, as this process sees it."""

    def __init__(self, url: str, config: BackendConfig, credential: Credential) -> None:
        self.url = url
        self.config = config
        self._credential = credential
        # Whether `credential_headers` has to be called for each request.
        self.credential_changes = credential.fixed_headers is None
        address = urlsplit(url)
        self._base = url.rstrip("/")
        self._netloc = address.netloc
        self._address_texts = (self._base, f"{address.scheme}://{address.netloc}", address.netloc)
        # The texts that no message to a client may contain: keys and the replica's address.
        self.secrets = (*credential.secrets, *self._address_texts)
        self.pool = open_pool(url, config)
        self.health = ReplicaHealth(
            EjectionRule(
                config.failures_to_eject,
                config.ejection_s,
                config.ejection_s_max,
                config.organizations_to_eject,
            )
        )
        # The number of calls in flight.
        self.in_flight = 0
        self.wire = wire_for(config)
        self.stream_type = self.wire.framing.value.encode("ascii")
        self._shared_headers = _shared_headers(
            address.netloc, {**self.wire.headers, **config.headers}
        )
        # The keys are the path and the accepted content type. On some backends each model has its
        # own path.
        self._prepared_headers: dict[tuple[str, bytes], _PreparedHeaders] = {}
        self._tokenize = tokenize_request(config)

    def request_head(self, path: str, accept: bytes, own_headers: bytes, body_length: int) -> bytes:
        """Builds the request line and the headers of one request. `path` is relative to the base
        address of the replica; if `path` begins with a slash, it is relative to the scheme, host
        and port. `own_headers` are additional header lines for this request only."""
        prepared = self._prepared_headers.get((path, accept)) or self._prepare_headers(path, accept)
        return b"%b%bcontent-length: %d\r\n\r\n" % (prepared.encoded, own_headers, body_length)

    async def credential_headers(
        self, path: str, accept: bytes, body: bytes, deadline: float
    ) -> bytes:
        """Returns the header lines of a credential that changes, for this request. Raises the errors
        of `Credential.headers_for`."""
        prepared = self._prepared_headers.get((path, accept)) or self._prepare_headers(path, accept)
        outgoing = OutgoingRequest(self._netloc, prepared.path, body)
        headers = await self._credential.headers_for(outgoing, deadline=deadline)
        self.secrets = (*self._credential.secrets, *self._address_texts)
        return headers

    def _prepare_headers(self, path: str, accept: bytes) -> _PreparedHeaders:
        if len(self._prepared_headers) >= _HEADERS_MAX:
            self._prepared_headers.clear()
        address = urlsplit(urljoin(f"{self._base}/", path))
        full_path = f"{address.path}?{address.query}" if address.query else address.path
        encoded = b"POST %b HTTP/1.1\r\n%baccept: %b\r\n%b" % (
            full_path.encode("ascii"),
            self._shared_headers,
            accept,
            self._credential.fixed_headers or b"",
        )
        prepared = self._prepared_headers[path, accept] = _PreparedHeaders(full_path, encoded)
        return prepared

    def doubt_credential(self) -> None:
        self._credential.doubt()

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        """Asks the replica's tokenizer for the number of prompt tokens. Returns None if the replica
        has no tokenizer, or if the request fails."""
        if self._tokenize is None:
            return None
        loop = asyncio.get_running_loop()
        deadline = min(deadline, loop.time() + self.config.tokenize_timeout_s)
        try:
            return await self._count(self._tokenize, call, deadline)
        except (HttpFailure, TollkeeperError):
            return None

    async def close(self) -> None:
        await self.pool.close()

    async def _count(self, tokenize: TokenizeRequest, call: Call, deadline: float) -> int | None:
        body = tokenize.encode(call)
        path, own_headers = tokenize.path_for(call.model), tokenize.headers_for(call)
        if self.credential_changes:
            own_headers += await self.credential_headers(path, JSON, body, deadline)
        head = self.request_head(path, JSON, own_headers, len(body))
        connection = await self.pool.acquire(
            deadline=deadline, organization=call.organization_id.int
        )
        try:
            answered = connection.send(head, body, deadline=deadline)
            del body  # so that the connection holds the only reference, until the body is sent
            await answered
            if connection.status != 200:
                return None
            check_content(connection, JSON)
            return read_count(await connection.read_whole(_COUNT_BYTES_MAX), tokenize.count_field)
        finally:
            self.pool.release(connection)


def check_content(connection: Connection, expected: bytes) -> None:
    """Checks the headers of an answer with the status 200. Raises BackendFailed if the body is
    compressed or has another content type than expected, because its content is then unknown."""
    headers = connection.headers
    if b"content-encoding" in headers and _is_compressed(headers[b"content-encoding"]):
        # The request does not accept compression. The gateway does not decompress, because a small
        # body could expand to any size.
        raise BackendFailed("The backend's answer is compressed.", charged=True)
    content_type = headers.get(b"content-type", b"")
    if content_type != expected and content_type.partition(b";")[0].strip().lower() != expected:
        raise BackendFailed("The backend's answer has the wrong content type.", charged=True)


def _is_compressed(content_encoding: bytes) -> bool:
    return content_encoding.strip().lower() not in (b"", b"identity")


def _shared_headers(netloc: str, more: Mapping[str, str]) -> bytes:
    """Encodes the headers that every request to the replica has. None of their values comes from a
    client."""
    headers = {
        "host": netloc,
        "user-agent": _USER_AGENT,
        "content-type": "application/json",
        "accept-encoding": "identity",
        **more,
    }
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
