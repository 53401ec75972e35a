"""Chooses a replica for each call, and retries failed calls on others.

Calls with the same affinity key, such as a session's, go to the same replica if possible:
rendezvous hashing, so all processes choose alike without communication.

Only calls that can't have been charged are retried. Every HTTP failure becomes a domain error,
whose `charged` tells whether the backend may have run the call. It didn't if the request wasn't
sent, or if it was refused (a status in `refusals.STATUS_RULES`, or an error object in place of the
answer). In all other cases it may have: after a 200, output may have been generated even if the
answer breaks off.
"""

import asyncio
import random
import sys
from time import monotonic

from tollkeeper.core.affinity import rendezvous_order
from tollkeeper.core.errors import (
    BackendFailed,
    DeadlineExceeded,
    ProviderRejected,
    RateLimited,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.core.inference import Call, Opened
from tollkeeper.core.port import Answering, AnswerReceiver, BackendHealth, ReplicaReport
from tollkeeper.core.runtime.large_requests import run_in_thread
from tollkeeper.core.runtime.timeouts import timeout
from tollkeeper.providers.answer_json import MalformedAnswer, flat_error_record
from tollkeeper.providers.config import BackendConfig, Tokenizer
from tollkeeper.providers.credentials import Credential, open_credential
from tollkeeper.providers.failures import domain_error, is_fault_of_replica, may_send_again
from tollkeeper.providers.health import AttemptKind, RecentOrganizations, ReplicaState
from tollkeeper.providers.identity.credential import open_identity
from tollkeeper.providers.refusals import refusal, refusal_record
from tollkeeper.providers.replica import Replica, check_content
from tollkeeper.providers.streamed_answer import StreamedAnswer
from tollkeeper.providers.transport.http1 import Connection, HttpFailure
from tollkeeper.providers.wire import WholeAnswer

# With `factor * mean + slack` calls in flight, the preferred replica is passed over. The mean is
# per usable replica, with the new call.
_AFFINITY_LOAD_FACTOR = 1.25
_AFFINITY_LOAD_SLACK = 4
_REASON_LENGTH_MAX = 200
# Nearly every attempt. Reading it from the enum takes six times as long.
_NORMAL = AttemptKind.NORMAL
# If not `charged`.
_RETRYABLE = (BackendFailed, RateLimited, Unavailable, DeadlineExceeded)
# For a refusal's body, read for its message, and to reuse the connection.
_REFUSAL_BYTES_MAX = 64 << 10
_REFUSAL_TIMEOUT_S = 2.0
# Maybe an invalid credential. AWS answers 403 to an expired key.
_CREDENTIAL_REFUSED = (401, 403)


class RoutedBackend:
    def __init__(self, config: BackendConfig, credential: Credential | None = None) -> None:
        """Opens the configured credential without one."""
        self.name = config.name
        self._config = config
        self._organizations = RecentOrganizations()
        self._credential = credential or open_credential_of(config)
        self._replicas = [
            Replica(url, config, self._credential) for url in dict.fromkeys(config.urls)
        ]
        # May always be called.
        self._only_replica = self._replicas[0] if len(self._replicas) == 1 else None

    def answer(self, call: Call, receiver: AnswerReceiver, *, deadline: float) -> Answering:
        if self._only_replica is not None:
            return self._try(self._only_replica, call, receiver, deadline)
        return self._try_in_order(call, receiver, deadline)

    @property
    def counts_tokens(self) -> bool:
        return self._config.tokenizer is not Tokenizer.NONE

    @property
    def counts_media(self) -> bool:
        return self._config.tokenizer is Tokenizer.PROTOCOL

    def prompts_sent(self, call: Call) -> int:
        return 1

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        if self._config.tokenizer is Tokenizer.NONE:
            return None
        for replica in self._order(call, asyncio.get_running_loop().time()):
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
            calls=replica.pool.in_flight,
            connections=pool.open_connections,
            waiting=pool.waiting,
        )

    async def start(self) -> None:
        """Doesn't wait for a credential's token. The first calls open the connections."""
        self._credential.start()

    async def close(self) -> None:
        await self._credential.close()
        for replica in self._replicas:
            await replica.pool.close()

    def _order(self, call: Call, now: float) -> list[Replica]:
        """That may be called now, best first."""
        admitting = [replica for replica in self._replicas if replica.health.admits(now)]
        if len(admitting) <= 1:
            return admitting
        if call.affinity is None:
            # At random with equal load, so processes don't all begin with the same
            # replica.
            return sorted(
                admitting,
                key=lambda replica: (replica.pool.in_flight, random.random()),  # noqa: S311
            )
        by_url = {replica.url: replica for replica in admitting}
        preferred = [by_url[url] for url in rendezvous_order(call.affinity, by_url)]
        mean = (sum(replica.pool.in_flight for replica in preferred) + 1) / len(preferred)
        load_limit = _AFFINITY_LOAD_FACTOR * mean + _AFFINITY_LOAD_SLACK
        # Overloaded ones last. The sort is stable, so preference decides among the rest.
        return sorted(preferred, key=lambda replica: replica.pool.in_flight >= load_limit)

    async def _try_in_order(self, call: Call, receiver: AnswerReceiver, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        last_error: TollkeeperError | None = None
        for replica in self._order(call, loop.time()):
            # Another call may have begun to probe it meanwhile.
            if failures and not replica.health.admits(loop.time()):
                continue
            try:
                await self._try(replica, call, receiver, deadline)
            except _RETRYABLE as error:
                failures += 1
                if failures > self._config.retries or not may_send_again(error, receiver, deadline):
                    raise
                receiver.sent, last_error = False, error
            else:
                return
        # The last healthy replica is never ejected, so one was tried.
        assert last_error is not None
        raise last_error

    async def _try(
        self, replica: Replica, call: Call, receiver: AnswerReceiver, deadline: float
    ) -> None:
        """Health is updated when the backend has begun to answer or refused, and at the answer's
        end."""
        owner = call.organization_id.int
        attempt = (
            _NORMAL
            if replica.health.is_sound
            else replica.health.begin(asyncio.get_running_loop().time())
        )
        self._organizations.seen(owner, monotonic())
        connection = None
        try:
            request = replica.request_for(call.model.upstream_model, call.streamed)
            body = (
                await run_in_thread(owner, request.encode, call)
                if call.is_large
                else request.encode(call)
            )
            own_headers = b""
            if call.outgoing_trace or call.beta_flags or replica.credential_changes:
                own_headers = await replica.own_headers(request, call, body, deadline)
            head = b"%b%bcontent-length: %d\r\n\r\n" % (request.head, own_headers, len(body))
            try:
                connection = await replica.pool.acquire(deadline=deadline, organization=owner)
                if receiver.ends_by is not None:
                    raise Unavailable("The call ended before it was sent.", retry_after_s=1)
                answered = connection.send(head, body, deadline=deadline)
                receiver.sent = True
                del body  # so that the connection holds the only reference, until the body is sent
                await answered
                if (
                    connection.status != 200
                    or connection.headers.get(b"content-type") != request.accept
                    or b"content-encoding" in connection.headers
                ):
                    await _check_status_and_content(replica, connection, request.accept)
                if request.streamed:
                    stream = replica.streamed_answer(connection, call)
                    await stream.begin()
                else:
                    answer = await connection.read_whole(replica.config.body_bytes_max)
                    try:
                        whole = replica.wire.read_whole(call, answer, secrets=replica.secrets)
                    except MalformedAnswer as error:
                        whole = _read_malformed(replica, answer, error)
            except HttpFailure as failure:
                # Once sent, the call may have run.
                raise domain_error(failure, charged=receiver.sent) from failure
        except BaseException as error:
            if connection is not None:
                replica.pool.release(connection)
            self._note_failure(replica, attempt, call, error, deadline)
            raise
        receiver.replica = replica.url
        if request.streamed:
            await self._pass_on(stream, replica, call, receiver, attempt)
            return
        replica.pool.release(connection)
        if whole.shortfall is not None or not replica.health.is_sound:
            self._note_answer(replica, attempt, call, whole.shortfall)
        await receiver.take(whole.events)
        if whole.shortfall is not None:
            raise whole.shortfall

    async def _pass_on(
        self,
        stream: StreamedAnswer,
        replica: Replica,
        call: Call,
        receiver: AnswerReceiver,
        attempt: AttemptKind,
    ) -> None:
        if attempt is AttemptKind.PROBE:
            replica.health.succeeded(attempt)
        is_first = True
        try:
            async for batch in stream:
                await receiver.take(batch)
                if is_first:
                    # Now further text can be written directly.
                    is_first = False
                    text_functions = receiver.text_functions()
                    if text_functions is not None:
                        stream.relay_text(*text_functions)
        finally:
            replica.pool.release(stream.release(), after_stream=stream.read_to_end)
            # A probe has ended when the answer began.
            if stream.failed:
                self._failed(replica, AttemptKind.NORMAL, call, sys.exception())
            elif stream.completed and not replica.health.is_sound:
                replica.health.succeeded(AttemptKind.NORMAL)

    def _note_answer(
        self, replica: Replica, attempt: AttemptKind, call: Call, shortfall: TollkeeperError | None
    ) -> None:
        """Not streamed. The shortfall is why the answer is incomplete."""
        if shortfall is None or attempt is AttemptKind.PROBE:
            replica.health.succeeded(attempt)
        if is_fault_of_replica(shortfall):
            self._failed(replica, AttemptKind.NORMAL, call, shortfall)

    def _note_failure(
        self,
        replica: Replica,
        attempt: AttemptKind,
        call: Call,
        error: BaseException,
        deadline: float,
    ) -> None:
        """Before an answer began."""
        now = asyncio.get_running_loop().time()
        health, is_late = replica.health, isinstance(error, DeadlineExceeded)
        if is_late and now >= deadline:
            # A client can cause a passed deadline, so it's not the replica's failure.
            health.abandoned(attempt, now)
        elif is_late or (isinstance(error, BackendFailed) and is_fault_of_replica(error)):
            self._failed(replica, attempt, call, error)
        elif isinstance(error, (BackendFailed, ProviderRejected, RateLimited)):
            health.succeeded(attempt)
        else:
            # Cancelled, or no free connection: says nothing about the replica.
            health.abandoned(attempt, now)

    def _failed(
        self, replica: Replica, kind: AttemptKind, call: Call, error: BaseException | None
    ) -> None:
        """The last healthy replica stays in use, even if calls of several organizations fail,
        because otherwise none could be answered."""
        now = asyncio.get_running_loop().time()
        others = (other for other in self._replicas if other is not replica)
        has_spare = any(other.health.state is ReplicaState.HEALTHY for other in others)
        replica.health.failed(
            kind,
            now,
            call.organization_id.int,
            organizations_active=self._organizations.count(monotonic()),
            is_last_healthy=not has_spare,
            reason=_reason(error),
        )


def _reason(error: BaseException | None) -> str:
    """For operators, in the gateway's words: errors that count against a replica never contain the
    provider's."""
    if isinstance(error, TollkeeperError):
        return error.reason[:_REASON_LENGTH_MAX]
    return "The answer broke off."


def open_credential_of(config: BackendConfig) -> Credential:
    if config.identity is not None:
        return open_identity(config.identity)
    return open_credential(config.credential, config.api_key, config.api_key_file)


async def _check_status_and_content(
    replica: Replica, connection: Connection, accept: bytes
) -> None:
    """Raises for another status than 200 or the wrong content."""
    body, status, headers = b"", connection.status, connection.headers
    if status == 200:
        check_content(headers, accept)
        return
    if b"content-encoding" not in headers:
        try:
            with timeout(_REFUSAL_TIMEOUT_S):
                body = await connection.read_whole(_REFUSAL_BYTES_MAX)
        except (TimeoutError, HttpFailure):
            body = b""
    if status in _CREDENTIAL_REFUSED:
        replica.credential.doubt()
    raise refusal(
        status,
        body,
        retry_after=headers.get(b"retry-after"),
        secrets=replica.secrets,
        kind=headers.get(b"x-amzn-errortype"),
    )


def _read_malformed(replica: Replica, body: bytes, error: MalformedAnswer) -> WholeAnswer:
    """Raises a refusal if it's an error object, otherwise BackendFailed, unless there's usage, so
    that the call can be charged exactly."""
    record = flat_error_record(body)
    if record is not None:
        raise refusal_record(record, secrets=replica.secrets)
    failed = BackendFailed(f"The backend's answer is malformed: {error}.", charged=True)
    report = replica.wire.read_usage(body)
    if report is None:
        raise failed from error
    return WholeAnswer([Opened(), report], failed)
