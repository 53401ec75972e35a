"""Holds the objects that every page uses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

from starlette.requests import Request

from tollkeeper.console.identity_provider import IdentityProvider
from tollkeeper.console.own_services import own_services
from tollkeeper.console.sessions import Session, Sessions, SignInAttempts
from tollkeeper.console.small_bodies import SmallBodies
from tollkeeper.domain.errors import DeadlineExceeded, Unavailable
from tollkeeper.domain.views import StandingAlert
from tollkeeper.services.policies.judge import Judge
from tollkeeper.services.use_cases import Services
from tollkeeper.services.vault import Vault
from tollkeeper.settings import Settings
from tollkeeper.settings.origins import SettingOrigin


@dataclass(frozen=True, slots=True)
class ProbedReplica:
    """Tells whether a replica can be reached now, with a sentence for the operator."""

    backend: str
    url: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Holds one result of `tollkeeper doctor`: ok, warning or bad."""

    name: str
    verdict: str
    detail: str


_STREAMS_MAX = 8
Probe = Callable[[], Awaitable[list[ProbedReplica]]]


@dataclass(frozen=True, slots=True)
class MachineChecks:
    """Provides the checks of this machine that commands implement."""

    # Probes every replica of every backend.
    replicas: Probe
    # Returns the alerts in the memory of the gateway on this machine.
    gateway_alerts: Callable[[], Awaitable[list[StandingAlert]]]
    # Runs the checks of `tollkeeper doctor`.
    doctor: Callable[[], Awaitable[list[Finding]]]


# Tells whether a body has this signature.
SignatureCheck = Callable[[bytes, str], bool]
OpenJudge = Callable[[], AbstractAsyncContextManager[Judge]]


@dataclass(frozen=True, slots=True)
class Console:
    services: Services
    settings: Settings
    origins: tuple[SettingOrigin, ...]
    sessions: Sessions
    attempts: SignInAttempts
    vault: Vault
    # None: users sign in with the operator token only.
    provider: IdentityProvider | None
    # Returns the last known state of the replicas.
    probe: Probe
    machine: MachineChecks
    # Opens the judge for rule trials; None if none is configured.
    open_judge: OpenJudge | None
    # Whether cookies are sent over HTTPS only.
    secure: bool
    # Checks payment events; None if the settings have no secret for them.
    is_signed: SignatureCheck | None = None
    webhook_bodies: SmallBodies = field(default_factory=SmallBodies)
    # Only one trial runs at a time, because each may start the local engine.
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    # Limits long answers: live tails and downloads.
    _streams: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_STREAMS_MAX))

    async def stream(self, pieces: AsyncIterator[str], deadline_s: float) -> AsyncIterator[str]:
        """Passes the pieces on for at most `deadline_s`. Call `require_stream` first."""
        try:
            async with self._streams, asyncio.timeout(deadline_s):
                async for piece in pieces:
                    yield piece
        except TimeoutError:
            raise DeadlineExceeded(f"This took longer than {deadline_s:.0f} s.") from None

    def require_stream(self) -> None:
        if self._streams.locked():
            raise Unavailable(f"There are {_STREAMS_MAX} open tails and downloads; end one first.")

    @asynccontextmanager
    async def turn(self, deadline_s: float) -> AsyncIterator[None]:
        """Reserves the console for one trial, check or export, because they use machines or tables
        exclusively. Raises Unavailable if another one runs, and DeadlineExceeded after
        `deadline_s`."""
        if self._turn.locked():
            raise Unavailable(
                "Another trial, check or export is running; try again when it has ended."
            )
        try:
            async with self._turn, asyncio.timeout(deadline_s):
                yield
        except TimeoutError:
            raise DeadlineExceeded(f"This took longer than {deadline_s:.0f} s.") from None


def console_of(request: Request) -> Console:
    """Returns the console with the use cases that the user may see."""
    console = request.app.state.console
    assert isinstance(console, Console)
    session = request.scope["session"]
    if session is None or session.person.organization_id is None:
        return console
    own = own_services(console.services, session.person.organization_id)
    return replace(console, services=own)


def session_of(request: Request) -> Session:
    session = request.scope["session"]
    assert isinstance(session, Session), "the guard lets nobody else through"
    return session
