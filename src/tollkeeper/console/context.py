"""Defines the objects that every page uses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from starlette.requests import Request

from tollkeeper.actions.own_services import AnyServices, OwnServices
from tollkeeper.console.identity_provider import IdentityProvider
from tollkeeper.console.sessions import Session, Sessions, WrongAttempts
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import DeadlineExceeded, PermissionDenied, Unavailable
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.policies.judge.judge import Judge, JudgeMeter
from tollkeeper.reports.alerts.rule import StandingAlert
from tollkeeper.setup.services import Services
from tollkeeper.setup.settings import Settings
from tollkeeper.setup.settings.origins import SettingOrigin


@dataclass(frozen=True, slots=True)
class ProbedReplica:
    """Tells whether a probe could reach a replica (one address of a backend). `detail` is a
    sentence for the operator."""

    backend: str
    url: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Contains the result of one check of `tollkeeper doctor` or of a backend trial."""

    name: str
    # ok, warning or bad for a check of `tollkeeper doctor`; works, fails or not offered for a
    # trial.
    verdict: str
    detail: str


# The maximum number of long responses at the same time (see `Console.stream`).
_STREAMS_MAX = 8
Probe = Callable[[], Awaitable[list[ProbedReplica]]]


@dataclass(frozen=True, slots=True)
class MachineChecks:
    """Provides the checks that have to run on this machine. The commands (package `cli`) implement
    them."""

    # Probes every replica of every backend.
    probe_replicas: Probe
    # Returns the alerts that the gateway on this machine has only in its memory.
    gateway_alerts: Callable[[], Awaitable[list[StandingAlert]]]
    # Runs the checks of `tollkeeper doctor`.
    doctor: Callable[[], Awaitable[list[Finding]]]


# Gets the body of a payment event and its signature. Returns the `livemode` of the secret that has
# signed it, or None if the signature is not valid.
SignatureCheck = Callable[[bytes, str], bool | None]
OpenJudge = Callable[[JudgeMeter], AbstractAsyncContextManager[Judge]]


@dataclass(frozen=True, slots=True)
class Console:
    """Contains the services, the settings and the state that all pages share."""

    services: Services
    settings: Settings
    origins: tuple[SettingOrigin, ...]
    sessions: Sessions
    # The right token is always accepted: its 256 random bits cannot be guessed, and strangers must
    # not be able to lock the operator out.
    wrong_tokens: WrongAttempts
    # Only the identity provider knows whether a code is right, so a network that has sent too many
    # wrong ones has to wait. Other networks need not.
    wrong_codes: WrongAttempts
    vault: Vault
    # None if users can sign in with the operator token only.
    provider: IdentityProvider | None
    # Returns the results of the last probe of all replicas, which are cached (see `ReplicaWatch`).
    last_probe: Probe
    machine: MachineChecks
    # Opens the judge for trials; None if no judge is configured.
    open_judge: OpenJudge | None
    # Whether cookies are sent over HTTPS only.
    secure: bool
    # Checks the signatures of payment events; None if the settings contain no secret for them.
    signed_livemode: SignatureCheck | None = None
    # Allows one trial, check or export of a month at a time (see `exclusive_run`).
    _exclusive: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    # Limits the number of long responses: live tails, downloads of activity, and playground calls.
    _streams: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_STREAMS_MAX))

    async def stream(self, pieces: AsyncIterator[str], deadline_s: float) -> AsyncIterator[str]:
        """Yields the pieces of a long response. Raises DeadlineExceeded after `deadline_s` seconds.
        The page must call `require_stream` before the response begins."""
        try:
            async with self._streams, asyncio.timeout(deadline_s):
                async for piece in pieces:
                    yield piece
        except TimeoutError:
            raise DeadlineExceeded(f"This took longer than {deadline_s:.0f} s.") from None

    def require_stream(self) -> None:
        """Raises Unavailable if there are too many long responses already."""
        if self._streams.locked():
            raise Unavailable(
                f"There are {_STREAMS_MAX} open live tails and downloads; close one of them first."
            )

    @asynccontextmanager
    async def exclusive_run(self, deadline_s: float) -> AsyncIterator[None]:
        """Lets one trial, check or export of a month run at a time, because each may start the
        embedded model server or read whole tables. Raises Unavailable if another one is running,
        and DeadlineExceeded after `deadline_s` seconds."""
        if self._exclusive.locked():
            raise Unavailable(
                "Another trial, check or export is running; try again when it has ended."
            )
        try:
            async with self._exclusive, asyncio.timeout(deadline_s):
                yield
        except TimeoutError:
            raise DeadlineExceeded(f"This took longer than {deadline_s:.0f} s.") from None


def whole_console(request: Request) -> Console:
    """Returns the console for every user, with the services of all organizations. Pages that an
    organization's users may see get their services from `services_of`."""
    console = request.app.state.console
    assert isinstance(console, Console)
    return console


def console_of(request: Request) -> Console:
    """Returns the console for a page that only operators may see. Raises PermissionDenied if the user
    belongs to an organization."""
    if _organization_of(request) is not None:
        raise PermissionDenied("Users of an organization may not do this.")
    return whole_console(request)


def services_of(request: Request) -> AnyServices:
    """Returns the services for a page that an organization's users may see, too."""
    services, own_id = whole_console(request).services, _organization_of(request)
    return services if own_id is None else OwnServices(services, own_id)


def _organization_of(request: Request) -> OrganizationId | None:
    session = request.scope["session"]
    return None if session is None else session.person.organization_id


def session_of(request: Request) -> Session:
    session = request.scope["session"]
    assert isinstance(session, Session), "the guard rejects requests without a session"
    return session
