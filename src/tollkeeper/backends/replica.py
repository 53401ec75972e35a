"""Sends calls to one replica (one address of a backend) over HTTP, and reads the answers.

This module converts every HTTP failure to a domain error. The error's attribute `charged` tells
whether the backend may have run the call, because a call that ran costs money. A call did not run in
two cases: the request was not sent, or the backend refused the call before running it (by a status in
`refusals.STATUS_RULES`, or by an error object in place of the answer). In all other cases the call
may have run. In particular, after an answer with the status 200 the backend may have generated output,
even if the answer then breaks off.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from tollkeeper.backends.answer_json import MalformedAnswer, flat_error_record
from tollkeeper.backends.config import BackendConfig
from tollkeeper.backends.credentials import Credential, OutgoingRequest
from tollkeeper.backends.failures import domain_error, is_fault_of_replica
from tollkeeper.backends.port import Answer
from tollkeeper.backends.refusals import refusal, refusal_record
from tollkeeper.backends.streamed_answer import StreamedAnswer
from tollkeeper.backends.tokenizers import TokenizeRequest, read_count, tokenize_request
from tollkeeper.backends.transport.framing import open_parser
from tollkeeper.backends.transport.http1 import (
    Connection,
    HttpFailure,
    ResponseHead,
)
from tollkeeper.backends.transport.pool import open_pool
from tollkeeper.backends.wire import WholeAnswer
from tollkeeper.backends.wires import beta_header, wire_for
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import Batch, Call, Event, Opened
from tollkeeper.runtime.large_requests import run_in_thread
from tollkeeper.runtime.timeouts import timeout

_JSON = b"application/json"
# The limits for reading the body of a refusal. The gateway reads the body for the error message, and
# to be able to reuse the connection.
_REFUSAL_BYTES_MAX = 64 << 10
_REFUSAL_TIMEOUT_S = 2.0
# The maximum size of the answer to a token count request.
_COUNT_BYTES_MAX = 1 << 20
# Statuses that may mean that the credential is not valid. AWS answers 403 to an expired key.
_CREDENTIAL_REFUSED = (401, 403)
_USER_AGENT = "tollkeeper"
# The maximum number of cached `_PreparedHeaders`. A model with its own path needs two: one for
# streams, one for JSON.
_HEADERS_MAX = 4096


class _PreparedHeaders(NamedTuple):
    """Contains the header lines that are the same for every request with the same path and accepted
    content type."""

    path: str
    # The request line and the header lines, as they are sent.
    encoded: bytes


class Replica:
    """Represents one address of a backend, with the connections to this address."""

    def __init__(self, url: str, config: BackendConfig, credential: Credential) -> None:
        self.url = url
        self.config = config
        self._credential = credential
        address = urlsplit(url)
        self._base = url.rstrip("/")
        self._netloc = address.netloc
        self.pool = open_pool(url, config)
        self.wire = wire_for(config)
        self.stream_type = self.wire.framing.value.encode("ascii")
        self._shared_headers = _shared_headers(
            address.netloc, {**self.wire.headers, **config.headers}
        )
        # The keys are the path and the accepted content type. On some backends each model has its
        # own path.
        self._prepared_headers: dict[tuple[str, bytes], _PreparedHeaders] = {}
        self._tokenize = tokenize_request(config)
        self._address_texts = (self._base, f"{address.scheme}://{address.netloc}", address.netloc)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Returns the texts that no message to a client may contain: keys and the replica's
        address."""
        return (*self._credential.secrets, *self._address_texts)

    async def request_head(
        self, path: str, accept: bytes, body: bytes, *, deadline: float, own_headers: bytes = b""
    ) -> bytes:
        """Builds the request line and the headers of one request. `path` is relative to the base
        address of the replica; if `path` begins with a slash, it is relative to the scheme, host
        and port. `own_headers` are additional header lines for this request only. Raises the errors
        of `Credential.headers_for`."""
        prepared = self._prepared_headers.get((path, accept)) or self._prepare_headers(path, accept)
        headers = self._credential.fixed_headers
        if headers is None:
            outgoing = OutgoingRequest(self._netloc, prepared.path, body)
            headers = await self._credential.headers_for(outgoing, deadline=deadline)
        return b"%b%b%bcontent-length: %d\r\n\r\n" % (
            prepared.encoded,
            headers,
            own_headers,
            len(body),
        )

    def _prepare_headers(self, path: str, accept: bytes) -> _PreparedHeaders:
        if len(self._prepared_headers) >= _HEADERS_MAX:
            self._prepared_headers.clear()
        address = urlsplit(urljoin(f"{self._base}/", path))
        full_path = f"{address.path}?{address.query}" if address.query else address.path
        encoded = b"POST %b HTTP/1.1\r\n%baccept: %b\r\n" % (
            full_path.encode("ascii"),
            self._shared_headers,
            accept,
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
        path = tokenize.path_for(call.model)
        head = await self.request_head(
            path, _JSON, body, deadline=deadline, own_headers=tokenize.headers_for(call)
        )
        connection = await self.pool.acquire(
            deadline=deadline, organization=call.organization_id.int
        )
        try:
            answered = connection.send(head, body, deadline=deadline)
            del body  # so that the connection holds the only reference, until the body is sent
            answer = await answered
            if answer.status != 200:
                return None
            check_content(answer, _JSON)
            return read_count(await connection.read_whole(_COUNT_BYTES_MAX), tokenize.count_field)
        finally:
            self.pool.release(connection)


class ReplicaCall:
    """Runs one call to one replica. For an answer that is not streamed, the object is also the
    iterator over the answer's events, which are one batch. The caller of `begin` has to call
    `release` afterwards, even if `begin` raises."""

    # The events of an answer that is not streamed, until `__anext__` returns them.
    _unread_events: list[Event] | None = None
    # The error that says why an answer that is not streamed is incomplete. `__anext__` raises the
    # error after it has returned the events.
    _shortfall: TollkeeperError | None = None
    _connection: Connection | None = None
    _stream: StreamedAnswer | None = None
    _completed = False
    _failed = False
    # Whether the request was passed to a connection. From then on, the backend may receive the request.
    sent = False

    def __init__(self, replica: Replica, call: Call, deadline: float) -> None:
        self._replica = replica
        self._call = call
        self._deadline = deadline

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        """Returns the one batch of an answer that is not streamed. A streamed answer has its own
        iterator (`StreamedAnswer`)."""
        if self._unread_events is not None:
            batch, self._unread_events = self._unread_events, None
            return batch
        if self._shortfall is not None:
            raise self._shortfall
        raise StopAsyncIteration

    @property
    def completed(self) -> bool:
        """Tells whether the answer arrived completely, with the end that its protocol requires."""
        return self._completed if self._stream is None else self._stream.completed

    @property
    def failed(self) -> bool:
        """Tells whether the answer ended in a way that counts as a failure of the replica."""
        return self._failed if self._stream is None else self._stream.failed

    def release(self) -> None:
        """Gives the connection back to the pool. No more of the answer can be read afterwards."""
        connection, self._connection = self._connection, None
        if connection is not None:
            stream = self._stream
            if stream is not None:
                stream.release()
            after_stream = stream is not None and stream.read_to_end
            self._replica.pool.release(connection, after_stream=after_stream)

    async def begin(self) -> Answer:
        """Sends the request, and reads until the backend has either begun to answer or refused the
        call. If the answer is not streamed, reads the whole answer. Even if this method raises, the
        caller has to call `release`."""
        replica, call, deadline = self._replica, self._call, self._deadline
        config, wire = replica.config, replica.wire
        streamed = call.streamed or config.always_stream
        encode, owner = wire.encode_request, call.organization_id.int
        if call.is_large:
            encode_call = partial(encode, call, stream=streamed, extra=config.extra_fields)
            body = await run_in_thread(owner, encode_call)
        else:
            body = encode(call, stream=streamed, extra=config.extra_fields)
        accept = replica.stream_type if streamed else _JSON
        path, trace = wire.path_for(call.model, stream=streamed), call.outgoing_trace
        own_headers = b"traceparent: %b\r\n" % trace if trace else b""
        if call.beta_flags:
            own_headers += beta_header(wire, call)
        head = await replica.request_head(
            path, accept, body, deadline=deadline, own_headers=own_headers
        )
        try:
            connection = await replica.pool.acquire(deadline=deadline, organization=owner)
        except HttpFailure as failure:
            raise domain_error(failure, charged=False) from failure
        self._connection = connection
        self.sent = True
        answered = connection.send(head, body, deadline=deadline)
        del body  # so that the connection holds the only reference, until the body is sent
        try:
            answer = await answered
            if answer.status != 200:
                raise await self._refusal(connection, answer)
            check_content(answer, accept)
            if not streamed:
                self._accept_completion(await connection.read_whole(config.body_bytes_max))
                return Answer(replica.url, self)
        except HttpFailure as failure:
            # The request was sent, so the backend may have run the call.
            raise domain_error(failure, charged=True) from failure
        reader = wire.open_stream(call, secrets=replica.secrets)
        parser = open_parser(wire.framing, config.record_bytes_max)
        stream = self._stream = StreamedAnswer(connection, reader, parser)
        await stream.begin()
        return Answer(replica.url, stream, relay_text=stream.relay_text)

    async def _refusal(self, connection: Connection, head: ResponseHead) -> TollkeeperError:
        body = b""
        if head.header(b"content-encoding") is None:
            try:
                with timeout(_REFUSAL_TIMEOUT_S):
                    body = await connection.read_whole(_REFUSAL_BYTES_MAX)
            except (TimeoutError, HttpFailure):
                body = b""
        if head.status in _CREDENTIAL_REFUSED:
            self._replica.doubt_credential()
        return refusal(
            head.status,
            body,
            retry_after=head.header(b"retry-after"),
            secrets=self._replica.secrets,
            kind=head.header(b"x-amzn-errortype"),
        )

    def _accept_completion(self, body: bytes) -> None:
        replica = self._replica
        self.release()
        try:
            answer = replica.wire.read_whole(self._call, body, secrets=replica.secrets)
        except MalformedAnswer as error:
            answer = self._read_malformed(body, error)
        self._unread_events, shortfall = answer.events, answer.shortfall
        self._completed = shortfall is None
        if shortfall is not None:
            self._shortfall, self._failed = shortfall, is_fault_of_replica(shortfall)

    def _read_malformed(self, body: bytes, error: MalformedAnswer) -> WholeAnswer:
        """Reads a body that is not a valid answer. Raises a refusal if the body is an error object.
        Otherwise returns the usage in the body, so that the call can be charged exactly. Raises
        BackendFailed if the body contains no usage."""
        replica = self._replica
        record = flat_error_record(body)
        if record is not None:
            raise refusal_record(record, secrets=replica.secrets)
        failed = BackendFailed(f"The backend's answer is malformed: {error}.", charged=True)
        report = replica.wire.read_usage(body)
        if report is None:
            raise failed from error
        return WholeAnswer([Opened(), report], failed)


def check_content(head: ResponseHead, expected: bytes) -> None:
    """Checks the headers of an answer with the status 200. Raises BackendFailed if the body is
    compressed or has another content type than expected, because its content is then unknown."""
    headers = head.headers
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        # The request does not accept compression. The gateway does not decompress, because a small
        # body could expand to any size.
        raise BackendFailed("The backend's answer is compressed.", charged=True)
    content_type = headers.get(b"content-type", b"")
    if content_type != expected and content_type.partition(b";")[0].strip().lower() != expected:
        raise BackendFailed("The backend's answer has the wrong content type.", charged=True)


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
