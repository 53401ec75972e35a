"""Runs the configured judge without a gateway, for commands and measurements."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.policies.judge.judge import Judge, JudgeMeter, unmetered
from tollkeeper.policies.judge.rule import EXAMPLES, Example
from tollkeeper.setup.backends import build_backends, build_judge, judge_secret
from tollkeeper.setup.embedded.engine import EmbeddedEngine, ProcessState
from tollkeeper.setup.engine import running_engine
from tollkeeper.setup.secrets import master_secret
from tollkeeper.setup.settings import Settings, SettingsError


@asynccontextmanager
async def running_judge(
    settings: Settings,
    meter: JudgeMeter = unmetered,
    examples: tuple[Example, ...] = EXAMPLES,
) -> AsyncIterator[Judge]:
    """With the embedded engine if the judge's backend uses it. Raises SettingsError if there is no judge."""
    reduced = _settings_for_judge(settings)
    async with (
        running_engine(reduced) as engine,
        judge_with_engine(reduced, engine, examples, meter) as judge,
    ):
        yield judge


@asynccontextmanager
async def judge_with_engine(
    settings: Settings,
    engine: EmbeddedEngine | None,
    examples: tuple[Example, ...] = EXAMPLES,
    meter: JudgeMeter = unmetered,
) -> AsyncIterator[Judge]:
    """With an engine that is already started, or none. Raises Unavailable if the judge uses it and it isn't
    ready."""
    reduced = _settings_for_judge(settings)
    needs_engine = any(backend.kind == "embedded" for backend in reduced.backends)
    if engine is not None and needs_engine and engine.status.state is not ProcessState.READY:
        raise Unavailable(engine.status.detail)
    backends = build_backends(reduced, None if engine is None else engine.address)
    secret = judge_secret(Vault(master_secret(reduced)))
    judge = build_judge(reduced, backends, secret, examples, meter)
    assert judge is not None
    for backend in backends.values():
        await backend.start()
    try:
        yield judge
    finally:
        for backend in backends.values():
            await backend.close()


def _settings_for_judge(settings: Settings) -> Settings:
    """With no other backend, so other secrets aren't needed."""
    declared = settings.judge
    if declared is None:
        raise SettingsError("judge: no judge is configured.")
    backends = tuple(backend for backend in settings.backends if backend.name == declared.backend)
    return settings.model_copy(update={"backends": backends})
