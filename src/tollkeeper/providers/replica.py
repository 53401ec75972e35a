"""One replica: its connections, request headers, health and tokenizer."""

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from tollkeeper.core.errors import BackendFailed, TollkeeperError
from tollkeeper.core.inference import Call
from tollkeeper.providers.config import BackendConfig, WireProtocol
from tollkeeper.providers.credentials import Credential, OutgoingRequest
from tollkeeper.providers.health import EjectionRule, ReplicaHealth
from tollkeeper.providers.streamed_answer import StreamedAnswer
from tollkeeper.providers.tokenizers import read_count, tokenize_request
from tollkeeper.providers.transport.framing import open_parser
from tollkeeper.providers.transport.http1 import Connection, HttpFailure
from tollkeeper.providers.transport.pool import open_pool
from tollkeeper.providers.wires import beta_header, wire_for

_JSON = b"application/json"
_COUNT_BYTES_MAX = 1 << 20
# Of a stream. The larger limit is for answers with images, and for Responses, whose last record has
# the whole result.
_RECORD_BYTES_MAX = 1 << 20
_LARGE_RECORD_BYTES_MAX = 16 << 20
_USER_AGENT = "tollkeeper"
# Cached. A model needs up to three: stream, JSON and token count.
_REQUESTS_MAX = 4096


class PreparedRequest(NamedTuple):
    """What all requests of a kind for a model share."""

    encode: Callable[[Call], bytes]
    # The backend is asked for a stream, which settings may demand even if the client gets none.
    streamed: bool
    path: str
    accept: bytes
    # Request line and headers, with those of a fixed credential.
    head: bytes


class Replica:
    """As this process sees it."""

    def __init__(self, url: str, config: BackendConfig, credential: Credential) -> None:
        self.url = url
        self.config = config
        self.credential = credential
        # From request to request.
        self.credential_changes = credential.fixed_headers is None
        address = urlsplit(url)
        self._base = url.rstrip("/")
        self._netloc = address.netloc
        self._address_texts = (self._base, f"{address.scheme}://{address.netloc}", address.netloc)
        # No message to a client may contain these keys and addresses.
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
        self.wire = wire_for(config)
        self.shared_headers = _shared_headers(
            address.netloc, {**self.wire.headers, **config.headers}
        )
        self._tokenize = tokenize_request(config)
        self.request_for = lru_cache(maxsize=_REQUESTS_MAX)(self._prepare)

    def _prepare(self, upstream_model: str, streamed: bool | None) -> PreparedRequest:
        """`streamed`: what the client gets; None counts tokens. A path with a leading slash is
        relative to the host, others to the base address."""
        encode: Callable[[Call], bytes]
        if streamed is None:
            assert self._tokenize is not None
            streamed = False
            encode, path = self._tokenize.encode, self._tokenize.path_for(upstream_model)
        else:
            streamed = streamed or self.config.always_stream
            extra = self.config.extra_fields
            encode = partial(self.wire.encode_request, stream=streamed, extra=extra)
            path = self.wire.path_for(upstream_model, stream=streamed)
        address = urlsplit(urljoin(f"{self._base}/", path))
        full_path = f"{address.path}?{address.query}" if address.query else address.path
        accept = self.wire.framing.value.encode("ascii") if streamed else _JSON
        head = b"POST %b HTTP/1.1\r\n%baccept: %b\r\n%b" % (
            full_path.encode("ascii"),
            self.shared_headers,
            accept,
            self.credential.fixed_headers or b"",
        )
        return PreparedRequest(encode, streamed, full_path, accept, head)

    async def own_headers(
        self, request: PreparedRequest, call: Call, body: bytes, deadline: float
    ) -> bytes:
        """Trace context, beta flags, and those of a credential that changes."""
        headers = b"traceparent: %b\r\n" % call.outgoing_trace if call.outgoing_trace else b""
        if call.beta_flags:
            headers += beta_header(self.wire, call)
        if self.credential_changes:
            headers += await self._credential_headers(request, body, deadline)
        return headers

    async def _credential_headers(
        self, request: PreparedRequest, body: bytes, deadline: float
    ) -> bytes:
        """Raises the errors of `Credential.headers_for`."""
        outgoing = OutgoingRequest(self._netloc, request.path, body)
        headers = await self.credential.headers_for(outgoing, deadline=deadline)
        self.secrets = (*self.credential.secrets, *self._address_texts)
        return headers

    def streamed_answer(self, connection: Connection, call: Call) -> StreamedAnswer:
        reader = self.wire.open_stream(call, secrets=self.secrets)
        has_large_records = (
            call.model.writes_images or self.config.protocol is WireProtocol.RESPONSES
        )
        parser = open_parser(
            self.wire.framing, _LARGE_RECORD_BYTES_MAX if has_large_records else _RECORD_BYTES_MAX
        )
        return StreamedAnswer(connection, reader, parser)

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        """None without a tokenizer, or if the request fails."""
        tokenize, model = self._tokenize, call.model.upstream_model
        if tokenize is None:
            return None
        now = asyncio.get_running_loop().time()
        deadline = min(deadline, now + self.config.tokenize_timeout_s)
        try:
            request = self.request_for(model, None)
            body = request.encode(call)
            own_headers = tokenize.headers_for(call)
            if self.credential_changes:
                own_headers += await self._credential_headers(request, body, deadline)
            head = b"%b%bcontent-length: %d\r\n\r\n" % (request.head, own_headers, len(body))
            owner = call.organization_id.int
            connection = await self.pool.acquire(deadline=deadline, organization=owner)
            try:
                answered = connection.send(head, body, deadline=deadline)
                del body  # so that the connection holds the only reference, until the body is sent
                await answered
                if connection.status != 200:
                    return None
                check_content(connection.headers, request.accept)
                answer = await connection.read_whole(_COUNT_BYTES_MAX)
                return read_count(answer, tokenize.count_field)
            finally:
                self.pool.release(connection)
        except (HttpFailure, TollkeeperError):
            return None


def check_content(headers: Mapping[bytes, bytes], expected: bytes) -> None:
    """With status 200. Raises BackendFailed for a compressed body or unexpected content type, whose
    content is unknown."""
    if b"content-encoding" in headers and _is_compressed(headers[b"content-encoding"]):
        # The gateway doesn't ask for compression, and doesn't decompress: a small body
        # could expand to any size.
        raise BackendFailed("The backend's answer is compressed.", charged=True)
    content_type = headers.get(b"content-type", b"")
    if content_type != expected and content_type.partition(b";")[0].strip().lower() != expected:
        raise BackendFailed("The backend's answer has the wrong content type.", charged=True)


def _is_compressed(content_encoding: bytes) -> bool:
    return content_encoding.strip().lower() not in (b"", b"identity")


def _shared_headers(netloc: str, more: Mapping[str, str]) -> bytes:
    """No value comes from a client."""
    headers = {
        "host": netloc,
        "user-agent": _USER_AGENT,
        "content-type": "application/json",
        "accept-encoding": "identity",
        **more,
    }
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
