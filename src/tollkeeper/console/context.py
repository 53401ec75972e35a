"""What every page works with."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from starlette.requests import Request

from tollkeeper.console.sessions import Session, Sessions, SignInAttempts
from tollkeeper.domain.views import StandingAlert
from tollkeeper.services.policies.judge import Judge
from tollkeeper.services.use_cases import Services
from tollkeeper.settings import Settings
from tollkeeper.settings.origins import SettingOrigin


@dataclass(frozen=True, slots=True)
class ProbedReplica:
    """Whether a replica can be reached now, with a sentence for the operator."""

    backend: str
    url: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of `tollkeeper doctor`: ok, warning or bad."""

    name: str
    verdict: str
    detail: str


Probe = Callable[[], Awaitable[list[ProbedReplica]]]


@dataclass(frozen=True, slots=True)
class MachineChecks:
    """What commands find out about this machine and its surroundings."""

    # Asks every replica of every backend.
    replicas: Probe
    # The alerts that the gateway on this machine keeps in its process.
    gateway_alerts: Callable[[], Awaitable[list[StandingAlert]]]
    # Runs the checks of `tollkeeper doctor`.
    doctor: Callable[[], Awaitable[list[Finding]]]


OpenJudge = Callable[[], AbstractAsyncContextManager[Judge]]


@dataclass(frozen=True, slots=True)
class Console:
    services: Services
    settings: Settings
    origins: tuple[SettingOrigin, ...]
    sessions: Sessions
    attempts: SignInAttempts
    # What is known of the replicas.
    probe: Probe
    machine: MachineChecks
    # The configured judge, for trials of rules; None where the settings have none.
    open_judge: OpenJudge | None
    # Whether cookies travel over HTTPS only.
    secure: bool
    # One trial at a time: the local engine is started for each.
    trial_turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


def console_of(request: Request) -> Console:
    console = request.app.state.console
    assert isinstance(console, Console)
    return console


def session_of(request: Request) -> Session:
    session = request.scope["session"]
    assert isinstance(session, Session), "the guard lets nobody else through"
    return session
