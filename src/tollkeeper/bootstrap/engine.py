"""From settings to the embedded engine, where a backend is declared that needs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tollkeeper.embedded.engine import EmbeddedEngine, EngineOptions, EngineState
from tollkeeper.settings import Settings

_POLL_S = 1.0


def build_engine(settings: Settings) -> EmbeddedEngine | None:
    """One for all processes of a gateway; not started yet."""
    wanted = any(backend.kind == "embedded" for backend in settings.backends)
    if not wanted or not settings.embedded.enabled:
        return None
    return EmbeddedEngine(
        EngineOptions(
            model_path=settings.embedded.model_path,
            threads=settings.embedded.threads,
            parallel=settings.embedded.parallel,
            context_length=settings.embedded.context_length,
        )
    )


@asynccontextmanager
async def running_engine(settings: Settings) -> AsyncIterator[EmbeddedEngine | None]:
    """An engine of one's own, ready or with a status that says why it is not; None where these
    settings have none."""
    engine = build_engine(settings)
    if engine is None:
        yield None
        return
    await engine.start()
    try:
        # It tries again and again by itself, and has a start timeout of its own.
        while engine.address is not None and not await engine.wait_ready(_POLL_S):
            if engine.status.state is EngineState.FAILED:
                break
        yield engine
    finally:
        await engine.close()
