"""The configured judge alone, for those who want to ask it without serving anything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tollkeeper.bootstrap.backends import build_backends, build_judge, judge_secret
from tollkeeper.bootstrap.engine import running_engine
from tollkeeper.bootstrap.secrets import master_secret
from tollkeeper.domain.errors import Unavailable
from tollkeeper.domain.judging import EXAMPLES, Example
from tollkeeper.embedded.engine import EmbeddedEngine, EngineState
from tollkeeper.services.policies.judge import Judge
from tollkeeper.services.vault import Vault
from tollkeeper.settings import Settings, SettingsError


@asynccontextmanager
async def running_judge(
    settings: Settings, examples: tuple[Example, ...] = EXAMPLES
) -> AsyncIterator[Judge]:
    """The judge that a gateway with these settings has. Where it is the embedded engine, one of
    its own is started meanwhile."""
    alone = _alone(settings)
    async with running_engine(alone) as engine, judge_over(alone, engine, examples) as judge:
        yield judge


@asynccontextmanager
async def judge_over(
    settings: Settings, engine: EmbeddedEngine | None, examples: tuple[Example, ...] = EXAMPLES
) -> AsyncIterator[Judge]:
    """The same over an engine that runs already. Raises Unavailable where the judge needs it, and
    it does not run."""
    alone = _alone(settings)
    needs_engine = any(backend.kind == "embedded" for backend in alone.backends)
    if engine is not None and needs_engine and engine.status.state is not EngineState.READY:
        raise Unavailable(engine.status.detail)
    backends = build_backends(alone, None if engine is None else engine.address)
    secret = judge_secret(Vault(master_secret(alone)))
    judge = build_judge(alone, backends, secret, examples)
    assert judge is not None
    for backend in backends.values():
        await backend.start()
    try:
        yield judge
    finally:
        for backend in backends.values():
            await backend.close()


def _alone(settings: Settings) -> Settings:
    """The judge's backend only: the other ones, and their secrets, are not needed."""
    declared = settings.judge
    if declared is None:
        raise SettingsError("judge: no judge is configured.")
    own = tuple(backend for backend in settings.backends if backend.name == declared.backend)
    return settings.model_copy(update={"backends": own})
