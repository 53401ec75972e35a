"""The configured judge alone, for those who want to ask it without serving anything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tollkeeper.backends.embedded import EngineState
from tollkeeper.backends.engine_address import EngineAddress
from tollkeeper.backends.judge import Judge
from tollkeeper.bootstrap.backends import build_backends, build_judge, judge_secret
from tollkeeper.bootstrap.engine import build_engine
from tollkeeper.domain.errors import Unavailable
from tollkeeper.domain.judging import EXAMPLES, Example
from tollkeeper.settings import Settings, SettingsError

_ENGINE_POLL_S = 1.0


@asynccontextmanager
async def running_judge(
    settings: Settings, examples: tuple[Example, ...] = EXAMPLES
) -> AsyncIterator[Judge]:
    """The judge that a gateway with these settings has. Where it is the embedded engine, one of
    its own is started meanwhile."""
    declared = settings.judge
    if declared is None:
        raise SettingsError("judge: no judge is configured.")
    own = tuple(backend for backend in settings.backends if backend.name == declared.backend)
    # The other backends, and their secrets, are not needed.
    alone = settings.model_copy(update={"backends": own})
    async with _running_engine(alone) as engine:
        backends = build_backends(alone, engine)
        judge = build_judge(alone, backends, judge_secret(alone), examples)
        assert judge is not None
        for backend in backends.values():
            await backend.start()
        try:
            yield judge
        finally:
            for backend in backends.values():
                await backend.close()


@asynccontextmanager
async def _running_engine(settings: Settings) -> AsyncIterator[EngineAddress | None]:
    engine = build_engine(settings)
    if engine is None:
        yield None
        return
    await engine.start()
    try:
        # It tries again and again by itself, and has a start timeout of its own.
        while engine.address is not None and not await engine.wait_ready(_ENGINE_POLL_S):
            if engine.status.state is EngineState.FAILED:
                break
        if engine.status.state is not EngineState.READY:
            raise Unavailable(engine.status.detail)
        yield engine.address
    finally:
        await engine.close()
