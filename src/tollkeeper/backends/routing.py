"""Chooses a replica (one address of a backend) for each call, sends the call, and retries failed calls
on other replicas.

All calls with the same affinity key, for example the calls of a session, go to the same replica if
possible. Rendezvous hashing selects this replica, so that every process makes the same choice without
communication.

A call is retried only if the backend cannot have charged for the failed attempt. This module converts
every HTTP failure to a domain error, whose attribute `charged` tells whether the backend may have run
the call, because a call that ran costs money. A call did not run in two cases: the request was not
sent, or the backend refused the call before running it (by a status in `refusals.STATUS_RULES`, or by
an error object in place of the answer). In all other cases the call may have run. In particular, after
an answer with the status 200 the backend may have generated output, even if the answer then breaks off.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import NoReturn

from tollkeeper.backends.answer_json import MalformedAnswer, flat_error_record
from tollkeeper.backends.config import BackendConfig, Tokenizer
from tollkeeper.backends.credentials import Credential, open_credential
from tollkeeper.backends.failures import domain_error, is_fault_of_replica
from tollkeeper.backends.health import AttemptKind, RecentOrganizations, ReplicaState
from tollkeeper.backends.identity.credential import open_identity
from tollkeeper.backends.port import Answer, BackendCall, BackendHealth, ReplicaReport
from tollkeeper.backends.refusals import refusal, refusal_record
from tollkeeper.backends.replica import JSON, Replica, check_content
from tollkeeper.backends.streamed_answer import StreamedAnswer
from tollkeeper.backends.transport.framing import open_parser
from tollkeeper.backends.transport.http1 import Connection, HttpFailure
from tollkeeper.backends.wire import WholeAnswer
from tollkeeper.backends.wires import beta_header
from tollkeeper.domain.affinity import rendezvous_order
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    ProviderRejected,
    RateLimited,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.domain.inference import Batch, Call, Event, Opened
from tollkeeper.runtime.large_requests import run_in_thread
from tollkeeper.runtime.timeouts import timeout

# A call with an affinity key goes to another replica than its preferred replica if the preferred
# replica has at least `factor * mean + slack` calls in flight. The mean is the number of calls in
# flight per usable replica, including the new call.
_AFFINITY_LOAD_FACTOR = 1.25
_AFFINITY_LOAD_SLACK = 4
_REASON_LENGTH_MAX = 200
# After these errors, the call may be sent to another replica, if the error is not `charged`.
_RETRYABLE = (BackendFailed, RateLimited, Unavailable, DeadlineExceeded)
# The limits for reading the body of a refusal. The gateway reads the body for the error message, and
# to be able to reuse the connection.
_REFUSAL_BYTES_MAX = 64 << 10
_REFUSAL_TIMEOUT_S = 2.0
# Statuses that may mean that the credential is not valid. AWS answers 403 to an expired key.
_CREDENTIAL_REFUSED = (401, 403)


class RoutedBackend:
    """Distributes a backend's calls over its replicas."""

    def __init__(self, config: BackendConfig, credential: Credential | None = None) -> None:
        """Opens the configured credential if none is passed."""
        self.name = config.name
        self._config = config
        self.retries = config.retries
        self.organizations = RecentOrganizations()
        self._credential = credential or _open_credential(config)
        self._replicas = [
            Replica(url, config, self._credential) for url in dict.fromkeys(config.urls)
        ]
        # The only replica, which may always be called. Empty if there are several replicas.
        self.only_replica = self._replicas if len(self._replicas) == 1 else []

    def open(self, call: Call, *, deadline: float) -> BackendCall:
        return _RoutedCall(self, call, deadline)

    @property
    def counts_tokens(self) -> bool:
        return self._config.tokenizer is not Tokenizer.NONE

    def prompts_sent(self, call: Call) -> int:
        return 1

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        if self._config.tokenizer is Tokenizer.NONE:
            return None
        for replica in self.order(call, asyncio.get_running_loop().time()):
            if replica.health.state is ReplicaState.HEALTHY:
                return await replica.count_prompt_tokens(call, deadline=deadline)
        return None

    def health(self) -> BackendHealth:
        states = {replica.url: replica.health.shown_state.value for replica in self._replicas}
        healthy = sum(state == ReplicaState.HEALTHY for state in states.values())
        return BackendHealth(
            name=self.name,
            ready=healthy > 0,
            detail=f"{healthy} of {len(states)} replicas healthy",
            replicas=states,
            reports=tuple(self._report(replica) for replica in self._replicas),
        )

    def _report(self, replica: Replica) -> ReplicaReport:
        health, pool = replica.health, replica.pool
        retry_in_s = None
        if health.state is not ReplicaState.HEALTHY:
            retry_in_s = max(0.0, health.ejected_until - asyncio.get_running_loop().time())
        return ReplicaReport(
            backend=self.name,
            url=replica.url,
            state=health.shown_state.value,
            retry_in_s=retry_in_s,
            last_failure=health.last_failure,
            calls=replica.in_flight,
            connections=pool.open_connections,
            waiting=pool.waiting,
        )

    async def start(self) -> None:
        """Starts the background work of the credential, for example to obtain a token. Does not
        wait for the token. The first calls open the connections."""
        self._credential.start()

    async def close(self) -> None:
        await self._credential.close()
        for replica in self._replicas:
            await replica.close()

    def order(self, call: Call, now: float) -> list[Replica]:
        """Returns the replicas that may be called now, best first."""
        admitting = [replica for replica in self._replicas if replica.health.admits(now)]
        if len(admitting) <= 1:
            return admitting
        if call.affinity is None:
            # Replicas with the same load are ordered at random, so that not all processes send
            # their first calls to the same replica.
            return sorted(
                admitting,
                key=lambda replica: (replica.in_flight, random.random()),  # noqa: S311
            )
        by_url = {replica.url: replica for replica in admitting}
        preferred = [by_url[url] for url in rendezvous_order(call.affinity, by_url)]
        mean = (sum(replica.in_flight for replica in preferred) + 1) / len(preferred)
        load_limit = _AFFINITY_LOAD_FACTOR * mean + _AFFINITY_LOAD_SLACK
        # Overloaded replicas go last. The sort is stable, so the order of preference stays the same
        # among overloaded replicas and among the other replicas.
        return sorted(preferred, key=lambda replica: replica.in_flight >= load_limit)

    def failed(
        self, replica: Replica, kind: AttemptKind, call: Call, error: BaseException | None
    ) -> None:
        """Records that a call failed at a replica. The last healthy replica of the backend stays in
        use, even if calls of several organizations fail, because otherwise no call could be
        answered."""
        now = asyncio.get_running_loop().time()
        others = (other for other in self._replicas if other is not replica)
        has_spare = any(other.health.state is ReplicaState.HEALTHY for other in others)
        replica.health.failed(
            kind,
            now,
            call.organization_id.int,
            organizations_active=self.organizations.count(now),
            is_last_healthy=not has_spare,
            reason=_reason(error),
        )


def _reason(error: BaseException | None) -> str:
    """Returns the reason of a failure, as a text for operators. The text is always the gateway's
    own: errors that count against a replica never contain text from the provider."""
    if isinstance(error, TollkeeperError):
        return error.message[:_REASON_LENGTH_MAX]
    return "The answer broke off."


def _open_credential(config: BackendConfig) -> Credential:
    if config.identity is not None:
        return open_identity(config.identity)
    return open_credential(config.credential, config.api_key, config.api_key_file)


class _RoutedCall:
    """Sends one call to one replica after another until a replica answers. For an answer that is not
    streamed, the object is also the iterator over the answer's events, which are one batch."""

    # The replica of the attempt that is in progress, or that gave the answer.
    _replica: Replica
    # Whether the request of this attempt was passed to a connection. From then on, the backend may
    # receive the request.
    sent = False
    _stream: StreamedAnswer | None = None
    # The events of an answer that is not streamed, until `__anext__` returns them.
    _unread_events: list[Event] | None = None
    # The error that says why an answer that is not streamed is incomplete. `__anext__` raises the
    # error after it has returned the events.
    _shortfall: TollkeeperError | None = None

    def __init__(self, backend: RoutedBackend, call: Call, deadline: float) -> None:
        self._backend = backend
        self._call = call
        self._deadline = deadline

    async def __aenter__(self) -> Answer:
        backend, call = self._backend, self._call
        loop = asyncio.get_running_loop()
        now = loop.time()
        failures = 0
        last_error: TollkeeperError | None = None
        for replica in backend.only_replica or backend.order(call, now):
            # During a failed attempt, another call may have begun to probe this replica.
            if failures and not replica.health.admits(now):
                continue
            kind = replica.health.begin(now)
            backend.organizations.seen(call.organization_id.int, now)
            self._replica = replica
            replica.in_flight += 1
            try:
                try:
                    answer = await self._send(replica)
                except BaseException as error:
                    replica.in_flight -= 1
                    now = loop.time()
                    self._note_failure(kind, error, now)
                    raise
            except _RETRYABLE as error:
                failures += 1
                if error.charged or now >= self._deadline or failures > backend.retries:
                    raise
                self.sent, last_error = False, error
                continue
            if kind is AttemptKind.PROBE:
                replica.health.succeeded(kind)
            return answer
        # The last healthy replica is never ejected, so at least one replica was tried.
        assert last_error is not None
        raise last_error

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        replica, stream = self._replica, self._stream
        replica.in_flight -= 1
        if stream is None:
            completed = self._shortfall is None
            failed = not completed and is_fault_of_replica(self._shortfall)
        else:
            replica.pool.release(stream.release(), after_stream=stream.read_to_end)
            completed, failed = stream.completed, stream.failed
        # If the attempt was a probe, the probe ended when the answer began.
        if failed:
            self._backend.failed(replica, AttemptKind.NORMAL, self._call, exc)
        elif completed and replica.health.failures:
            replica.health.succeeded(AttemptKind.NORMAL)

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

    async def _send(self, replica: Replica) -> Answer:
        """Sends the request to a replica, and reads until the backend has either begun to answer or
        refused the call. If the answer is not streamed, reads the whole answer."""
        call, deadline = self._call, self._deadline
        config, wire = replica.config, replica.wire
        streamed, owner = call.streamed or config.always_stream, call.organization_id.int
        if call.is_large:
            encode = partial(wire.encode_request, call, stream=streamed, extra=config.extra_fields)
            body = await run_in_thread(owner, encode)
        else:
            body = wire.encode_request(call, stream=streamed, extra=config.extra_fields)
        path, accept = wire.path_for(call.model, stream=streamed), JSON
        if streamed:
            accept = replica.stream_type
        own_headers = b""
        if call.outgoing_trace:
            own_headers = b"traceparent: %b\r\n" % call.outgoing_trace
        if call.beta_flags:
            own_headers += beta_header(wire, call)
        if replica.credential_changes:
            own_headers += await replica.credential_headers(path, accept, body, deadline)
        head = replica.request_head(path, accept, own_headers, len(body))
        try:
            connection = await replica.pool.acquire(deadline=deadline, organization=owner)
        except HttpFailure as failure:
            raise domain_error(failure, charged=False) from failure
        try:
            self.sent = True
            answered = connection.send(head, body, deadline=deadline)
            del body  # so that the connection holds the only reference, until the body is sent
            await answered
            if connection.status != 200:
                await self._refuse(connection)
            check_content(connection, accept)
            if streamed:
                reader = wire.open_stream(call, secrets=replica.secrets)
                parser = open_parser(wire.framing, config.record_bytes_max)
                stream = StreamedAnswer(connection, reader, parser)
                await stream.begin()
                self._stream = stream
                return Answer(replica.url, stream, relay_text=stream.relay_text)
            body = await connection.read_whole(config.body_bytes_max)
        except BaseException as error:
            replica.pool.release(connection)
            if isinstance(error, HttpFailure):
                # The request was sent, so the backend may have run the call.
                raise domain_error(error, charged=True) from error
            raise
        replica.pool.release(connection)
        try:
            whole = wire.read_whole(call, body, secrets=replica.secrets)
        except MalformedAnswer as error:
            whole = self._read_malformed(body, error)
        self._unread_events, self._shortfall = whole.events, whole.shortfall
        return Answer(replica.url, self)

    async def _refuse(self, connection: Connection) -> NoReturn:
        """Raises the error for an answer with another status than 200."""
        body, status, headers = b"", connection.status, connection.headers
        if b"content-encoding" not in headers:
            try:
                with timeout(_REFUSAL_TIMEOUT_S):
                    body = await connection.read_whole(_REFUSAL_BYTES_MAX)
            except (TimeoutError, HttpFailure):
                body = b""
        if status in _CREDENTIAL_REFUSED:
            self._replica.doubt_credential()
        raise refusal(
            status,
            body,
            retry_after=headers.get(b"retry-after"),
            secrets=self._replica.secrets,
            kind=headers.get(b"x-amzn-errortype"),
        )

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

    def _note_failure(self, kind: AttemptKind, error: BaseException, now: float) -> None:
        """Records an attempt that ended with an error, before an answer began, in the health of its
        replica."""
        health, is_late = self._replica.health, isinstance(error, DeadlineExceeded)
        if is_late and now >= self._deadline:
            # The deadline of the call passed. A client can cause a passed deadline, so the
            # attempt does not count as a failure of the replica.
            health.abandoned(kind, now)
        elif is_late or (isinstance(error, BackendFailed) and is_fault_of_replica(error)):
            self._backend.failed(self._replica, kind, self._call, error)
        elif isinstance(error, (BackendFailed, ProviderRejected, RateLimited)):
            health.succeeded(kind)
        else:
            # For example, the call was cancelled, or no connection was free. Neither shows whether
            # the replica works.
            health.abandoned(kind, now)
