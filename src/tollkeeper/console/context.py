"""What every page works with."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from starlette.requests import Request

from tollkeeper.console.sessions import Session, Sessions, SignInAttempts
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


Probe = Callable[[], Awaitable[list[ProbedReplica]]]
OpenJudge = Callable[[], AbstractAsyncContextManager[Judge]]


@dataclass(frozen=True, slots=True)
class Console:
    services: Services
    settings: Settings
    origins: tuple[SettingOrigin, ...]
    sessions: Sessions
    attempts: SignInAttempts
    # Asks every replica of every backend.
    probe: Probe
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
