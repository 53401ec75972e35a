"""Chooses a replica (one address of a backend) for each call, and retries failed calls on other
replicas.

A call is retried only if the backend cannot have charged for the failed attempt. All calls with the
same affinity key, for example the calls of a session, go to the same replica if possible. Rendezvous
hashing selects this replica, so that every process makes the same choice without communication.
"""

import asyncio
import random
from dataclasses import dataclass
from types import TracebackType

from tollkeeper.backends.config import BackendConfig, Tokenizer
from tollkeeper.backends.credentials import Credential, open_credential
from tollkeeper.backends.failures import is_fault_of_replica
from tollkeeper.backends.health import (
    AttemptKind,
    EjectionRule,
    RecentOrganizations,
    ReplicaHealth,
    ReplicaState,
)
from tollkeeper.backends.identity.credential import open_identity
from tollkeeper.backends.port import Answer, BackendCall, BackendHealth, ReplicaReport
from tollkeeper.backends.replica import Replica, ReplicaCall
from tollkeeper.domain.affinity import rendezvous_order
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    ProviderRejected,
    RateLimited,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.domain.inference import Call

# A call with an affinity key goes to another replica than its preferred replica if the preferred
# replica has at least `factor * mean + slack` calls in flight. The mean is the number of calls in
# flight per usable replica, including the new call.
_AFFINITY_LOAD_FACTOR = 1.25
_AFFINITY_LOAD_SLACK = 4
_REASON_LENGTH_MAX = 200
# After these errors, the call may be sent to another replica, if the error is not `charged`.
_RETRYABLE = (BackendFailed, RateLimited, Unavailable, DeadlineExceeded)


@dataclass(slots=True)
class _TrackedReplica:
    """Holds a replica, and its health and load as this process sees them."""

    server: Replica
    health: ReplicaHealth
    in_flight: int = 0


class RoutedBackend:
    """Distributes a backend's calls over its replicas."""

    def __init__(self, config: BackendConfig, credential: Credential | None = None) -> None:
        """Opens the configured credential if none is passed."""
        self.name = config.name
        self._config = config
        rule = EjectionRule(
            config.failures_to_eject,
            config.ejection_s,
            config.ejection_s_max,
            config.organizations_to_eject,
        )
        self.organizations = RecentOrganizations()
        self._credential = credential or _open_credential(config)
        self._tracked = {
            url: _TrackedReplica(Replica(url, config, self._credential), ReplicaHealth(rule))
            for url in config.urls
        }

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
        candidates = self.order(call, asyncio.get_running_loop().time())
        healthy = [
            replica for replica in candidates if replica.health.state is ReplicaState.HEALTHY
        ]
        if not healthy:
            return None
        return await healthy[0].server.count_prompt_tokens(call, deadline=deadline)

    def health(self) -> BackendHealth:
        states = {url: replica.health.shown_state.value for url, replica in self._tracked.items()}
        healthy = sum(state == ReplicaState.HEALTHY for state in states.values())
        return BackendHealth(
            name=self.name,
            ready=healthy > 0,
            detail=f"{healthy} of {len(states)} replicas healthy",
            replicas=states,
            reports=tuple(self._report(replica) for replica in self._tracked.values()),
        )

    def _report(self, replica: _TrackedReplica) -> ReplicaReport:
        health, pool = replica.health, replica.server.pool
        retry_in_s = None
        if health.state is not ReplicaState.HEALTHY:
            retry_in_s = max(0.0, health.ejected_until - asyncio.get_running_loop().time())
        return ReplicaReport(
            backend=self.name,
            url=replica.server.url,
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
        for replica in self._tracked.values():
            await replica.server.close()

    @property
    def retries(self) -> int:
        return self._config.retries

    def order(self, call: Call, now: float) -> list[_TrackedReplica]:
        """Returns the replicas that may be called now, best first. If the backend has only one
        replica, that replica may always be called."""
        if len(self._tracked) == 1:
            return list(self._tracked.values())
        admitting = [replica for replica in self._tracked.values() if replica.health.admits(now)]
        if len(admitting) <= 1:
            return admitting
        if call.affinity is None:
            # Replicas with the same load are ordered at random, so that not all processes send
            # their first calls to the same replica.
            return sorted(
                admitting,
                key=lambda replica: (replica.in_flight, random.random()),  # noqa: S311
            )
        urls = (replica.server.url for replica in admitting)
        preferred = [self._tracked[url] for url in rendezvous_order(call.affinity, urls)]
        mean = (sum(replica.in_flight for replica in preferred) + 1) / len(preferred)
        load_limit = _AFFINITY_LOAD_FACTOR * mean + _AFFINITY_LOAD_SLACK
        # Overloaded replicas go last. The sort is stable, so the order of preference stays the same
        # among overloaded replicas and among the other replicas.
        return sorted(preferred, key=lambda replica: replica.in_flight >= load_limit)

    def failed(
        self, replica: _TrackedReplica, kind: AttemptKind, call: Call, error: BaseException | None
    ) -> None:
        """Records that a call failed at a replica. The last healthy replica of the backend stays in
        use, even if calls of several organizations fail, because otherwise no call could be
        answered."""
        now = asyncio.get_running_loop().time()
        others = (other for other in self._tracked.values() if other is not replica)
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
    """Sends one call to one replica after another until a replica answers."""

    def __init__(self, backend: RoutedBackend, call: Call, deadline: float) -> None:
        self._backend = backend
        self._call = call
        self._deadline = deadline
        # The replica and the attempt that are in progress, or that gave the answer.
        self._replica: _TrackedReplica | None = None
        self._attempt: ReplicaCall | None = None

    @property
    def sent(self) -> bool:
        return self._attempt is not None and self._attempt.sent

    async def __aenter__(self) -> Answer:
        backend, call, deadline = self._backend, self._call, self._deadline
        loop = asyncio.get_running_loop()
        attempts_left = backend.retries + 1
        last_error: TollkeeperError | None = None
        for replica in backend.order(call, loop.time()):
            now, health = loop.time(), replica.health
            if not attempts_left:
                break
            if not health.admits(now):
                continue
            attempts_left -= 1
            kind = health.begin(now)
            backend.organizations.seen(call.organization_id.int, now)
            self._replica, attempt = replica, ReplicaCall(replica.server, call, deadline)
            self._attempt = attempt
            replica.in_flight += 1
            try:
                try:
                    answer = await attempt.begin()
                except BaseException as error:
                    attempt.release()
                    replica.in_flight -= 1
                    self._note_failure(replica, kind, error)
                    raise
            except _RETRYABLE as error:
                if error.charged or loop.time() >= deadline:
                    raise
                last_error = error
                continue
            if kind is AttemptKind.PROBE:
                health.succeeded(kind)
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
        replica, attempt = self._replica, self._attempt
        assert replica is not None
        assert attempt is not None
        attempt.release()
        replica.in_flight -= 1
        # If the attempt was a probe, the probe ended when the answer began.
        if attempt.failed:
            self._backend.failed(replica, AttemptKind.NORMAL, self._call, exc)
        elif attempt.completed:
            replica.health.succeeded(AttemptKind.NORMAL)

    def _note_failure(
        self, replica: _TrackedReplica, kind: AttemptKind, error: BaseException
    ) -> None:
        """Records an attempt that ended with an error, before an answer began, in the health of its
        replica."""
        now, is_late = asyncio.get_running_loop().time(), isinstance(error, DeadlineExceeded)
        if is_late and now >= self._deadline:
            # The deadline of the call passed. A client can cause a passed deadline, so the
            # attempt does not count as a failure of the replica.
            replica.health.abandoned(kind, now)
        elif is_late or (isinstance(error, BackendFailed) and is_fault_of_replica(error)):
            self._backend.failed(replica, kind, self._call, error)
        elif isinstance(error, (BackendFailed, ProviderRejected, RateLimited)):
            replica.health.succeeded(kind)
        else:
            # For example, the call was cancelled, or no connection was free. Neither shows whether
            # the replica works.
            replica.health.abandoned(kind, now)
