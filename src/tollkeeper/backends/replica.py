"""One replica of an OpenAI-compatible service: sends a call over HTTP and reads its answer.

Foreign failures become domain errors here. The one question that all of it serves is whether the
backend may have run the call: no before the request has left, and after a refusal that says so
(`refusals.STATUS_RULES`, or an error object in the answer's place); yes in every other case. Where
the head of the answer is a 200, the backend may have generated, whatever becomes of the rest.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from types import TracebackType
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
from tollkeeper.backends.transport.pool import ConnectionPool, open_pool
from tollkeeper.backends.wire import WholeAnswer
from tollkeeper.backends.wires import wire_for
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import Batch, Call, Event, Opened
from tollkeeper.large_requests import beside_the_loop
from tollkeeper.timeouts import timeout

_JSON = b"application/json"
# A refusal is read only for its message, and so that its connection can be used again.
_REFUSAL_BYTES_MAX = 64 << 10
_REFUSAL_TIMEOUT_S = 2.0
_COUNT_BYTES_MAX = 1 << 20
# AWS answers 403 for keys that have expired.
_CREDENTIAL_REFUSED = (401, 403)
_USER_AGENT = "tollkeeper"
# Heads of requests that are kept: two for each model with a path of its own.
_HEADS_MAX = 4096


class RequestHead(NamedTuple):
    """The lines of a request that are the same for every call with this path."""

    path: str
    written: bytes


class Replica:
    """One address of a backend, and the connections to it."""

    def __init__(self, url: str, config: BackendConfig, credential: Credential) -> None:
        self.url = url
        self.config = config
        self._credential = credential
        address = urlsplit(url)
        self._base = url.rstrip("/")
        self._netloc = address.netloc
        self._pool = open_pool(url, config)
        self.wire = wire_for(config)
        self.stream_type = self.wire.framing.value.encode("ascii")
        self._shared_headers = _shared_headers(
            address.netloc, {**self.wire.headers, **config.headers}
        )
        # By path and by what is accepted. Models have paths of their own on some backends.
        self._heads: dict[tuple[str, bytes], RequestHead] = {}
        self._tokenize = tokenize_request(config)
        self._origin = f"{address.scheme}://{address.netloc}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message to a caller may contain."""
        return (*self._credential.secrets, self._base, self._origin, self._netloc)

    async def request_head(
        self, path: str, accept: bytes, body: bytes, *, deadline: float, own_headers: bytes = b""
    ) -> bytes:
        """The head of a request. `path` is relative to the base address, or to its origin if it begins
        with a slash. `own_headers` are header lines of this call. Raises what the credential
        raises."""
        head = self._heads.get((path, accept))
        if head is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            address = urlsplit(urljoin(f"{self._base}/", path))
            full_path = f"{address.path}?{address.query}" if address.query else address.path
            written = _request_head(full_path, accept, self._shared_headers)
            head = self._heads[path, accept] = RequestHead(full_path, written)
        outgoing = OutgoingRequest(self._netloc, head.path, body)
        headers = await self._credential.headers_for(outgoing, deadline=deadline)
        length = b"content-length: %d\r\n\r\n" % len(body)
        return b"".join((head.written, headers, own_headers, length))

    def doubt_credential(self) -> None:
        self._credential.doubt()

    def open(self, call: Call, *, deadline: float) -> "ReplicaCall":
        return ReplicaCall(self, call, deadline)

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        """The count of the replica's own tokenizer; None where there is none or it fails."""
        if self._tokenize is None:
            return None
        loop = asyncio.get_running_loop()
        deadline = min(deadline, loop.time() + self.config.tokenize_timeout_s)
        try:
            return await self._count(self._tokenize, call, deadline)
        except (HttpFailure, TollkeeperError):
            return None

    async def close(self) -> None:
        await self._pool.close()

    @property
    def pool(self) -> ConnectionPool:
        return self._pool

    async def _count(self, tokenize: TokenizeRequest, call: Call, deadline: float) -> int | None:
        body = tokenize.encode(call)
        path = tokenize.path_for(call.model)
        head = await self.request_head(
            path, _JSON, body, deadline=deadline, own_headers=tokenize.headers_for(call)
        )
        connection = await self._pool.acquire(
            deadline=deadline, organization=call.organization_id.int
        )
        try:
            connection.send(head, body, deadline=deadline, idle_s=self.config.idle_timeout_s)
            del body  # The connection frees it when it is sent.
            answer = await connection.read_head()
            if answer.status != 200:
                return None
            check_content(answer, _JSON)
            return read_count(await read_body(connection, _COUNT_BYTES_MAX), tokenize.count_field)
        finally:
            self._pool.release(connection)


class ReplicaCall:
    """One call to one replica; a context manager, and the iterator of the one batch of a whole
    answer."""

    def __init__(self, replica: Replica, call: Call, deadline: float) -> None:
        self._replica = replica
        self._call = call
        self._deadline = deadline
        self._connection: Connection | None = None
        self._stream: StreamedAnswer | None = None
        # Events that were read and that the caller of `__anext__` has not taken yet.
        self._first: list[Event] | None = None
        # Why a whole answer is incomplete. It is raised after the events that did come.
        self._shortfall: TollkeeperError | None = None
        self._completed = False
        self._failed = False
        self.sent = False

    async def __aenter__(self) -> Answer:
        try:
            await self._begin()
        except BaseException:
            self._release()
            raise
        stream = self._stream
        if stream is None:
            return Answer(self._replica.url, self)
        return Answer(self._replica.url, stream, relay_text=stream.relay_text)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release()

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        """The batches of a whole answer. A stream is read from its own iterator."""
        if self._first is not None:
            batch, self._first = self._first, None
            return batch
        if self._shortfall is not None:
            raise self._shortfall
        raise StopAsyncIteration

    @property
    def completed(self) -> bool:
        """The answer came to its proper end."""
        return self._completed if self._stream is None else self._stream.completed

    @property
    def failed(self) -> bool:
        """Whether the end of the answer counts as a failure for the health of the replica."""
        return self._failed if self._stream is None else self._stream.failed

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            stream = self._stream
            if stream is not None:
                stream.release()
            after_stream = stream is not None and stream.read_to_end
            self._replica.pool.release(connection, after_stream=after_stream)

    async def _begin(self) -> None:
        """Sends the request and reads the answer as far as it takes to know that there is one."""
        replica, call = self._replica, self._call
        streamed = call.streamed or replica.config.always_stream
        extra = replica.config.extra_fields
        if call.is_large:
            body = await beside_the_loop(
                call.organization_id.int,
                partial(replica.wire.encode_request, call, stream=streamed, extra=extra),
            )
        else:
            body = replica.wire.encode_request(call, stream=streamed, extra=extra)
        accept = replica.stream_type if streamed else _JSON
        path = replica.wire.path_for(call.model, stream=streamed)
        trace = call.outgoing_trace
        head = await replica.request_head(
            path,
            accept,
            body,
            deadline=self._deadline,
            own_headers=b"traceparent: %b\r\n" % trace if trace else b"",
        )
        organization = call.organization_id.int
        try:
            connection = await replica.pool.acquire(
                deadline=self._deadline, organization=organization
            )
        except HttpFailure as failure:
            raise domain_error(failure, charged=False) from failure
        self._connection = connection
        self.sent = True
        connection.send(head, body, deadline=self._deadline, idle_s=replica.config.idle_timeout_s)
        del body  # The connection frees it when it is sent.
        try:
            answer = await connection.read_head()
        except HttpFailure as failure:
            # The backend may have run the call.
            raise domain_error(failure, charged=True) from failure
        if answer.status != 200:
            raise await self._refusal(connection, answer)
        check_content(answer, accept)
        if streamed:
            reader = replica.wire.open_stream(call, secrets=replica.secrets)
            parser = open_parser(replica.wire.framing, replica.config.frame_bytes_max)
            self._stream = StreamedAnswer(connection, reader, parser)
            await self._stream.begin()
        else:
            whole = connection.take_whole()
            if whole is None:
                whole = await self._read_whole(connection)
            self._accept_completion(whole)

    async def _refusal(self, connection: Connection, head: ResponseHead) -> TollkeeperError:
        body = b""
        if head.header(b"content-encoding") is None:
            try:
                with timeout(_REFUSAL_TIMEOUT_S):
                    body = await read_body(connection, _REFUSAL_BYTES_MAX)
            except (TimeoutError, HttpFailure, BackendFailed):
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

    async def _read_whole(self, connection: Connection) -> bytes:
        try:
            return await read_body(connection, self._replica.config.body_bytes_max)
        except HttpFailure as failure:
            raise domain_error(failure, charged=True) from failure

    def _accept_completion(self, body: bytes) -> None:
        _check_size(len(body), self._replica.config.body_bytes_max)
        self._release()
        replica = self._replica
        try:
            answer = replica.wire.read_whole(self._call, body, secrets=replica.secrets)
        except MalformedAnswer as error:
            answer = self._read_malformed(body, error)
        self._first = answer.events
        self._shortfall = answer.shortfall
        self._completed = answer.shortfall is None
        self._failed = is_fault_of_replica(answer.shortfall)

    def _read_malformed(self, body: bytes, error: MalformedAnswer) -> WholeAnswer:
        """What can be known of an answer that is none: that it is a refusal, or what it used."""
        replica = self._replica
        record = flat_error_record(body)
        if record is not None:
            raise refusal_record(record, secrets=replica.secrets)
        failed = BackendFailed(f"The backend's answer is malformed: {error}.", charged=True)
        report = replica.wire.read_usage(body)
        if report is None:
            raise failed from error
        return WholeAnswer([Opened(), report], failed)


async def read_body(connection: Connection, bytes_max: int) -> bytes:
    """The whole body, never more of it in memory than allowed. A caller can ask for more than
    that, so a large answer does not speak against the replica."""
    chunks = []
    size = 0
    while chunk := await connection.read():
        size += len(chunk)
        _check_size(size, bytes_max)
        chunks.append(chunk)
        connection.mark_progress()
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise BackendFailed("The backend's answer is too large.", charged=True, blameless=True)


def check_content(head: ResponseHead, wanted: bytes) -> None:
    """Raises BackendFailed for the body of a 200 that cannot be read: what it says is unknown."""
    encoding = head.header(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        # Nothing was asked to be compressed, and unpacking has no bound.
        raise BackendFailed("The backend's answer is compressed.", charged=True)
    content_type = head.header(b"content-type") or b""
    if content_type != wanted and content_type.partition(b";")[0].strip().lower() != wanted:
        raise BackendFailed("The backend's answer has the wrong content type.", charged=True)


def _shared_headers(netloc: str, more: Mapping[str, str]) -> bytes:
    """Everything that ever travels upstream beside the credential: no header of a caller is among
    it."""
    headers = {
        "host": netloc,
        "user-agent": _USER_AGENT,
        "content-type": "application/json",
        "accept-encoding": "identity",
        **more,
    }
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")


def _request_head(path: str, accept: bytes, headers: bytes) -> bytes:
    """A request up to its credential and its length, which differ from call to call."""
    return b"POST %b HTTP/1.1\r\n%baccept: %b\r\n" % (path.encode("ascii"), headers, accept)
