"""Builds the embedded engine if a backend needs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tollkeeper.setup.embedded.engine import EmbeddedEngine, EngineOptions, ProcessState
from tollkeeper.setup.embedded.packaged_model import PACKAGED_MODEL
from tollkeeper.setup.settings import Settings

_POLL_S = 1.0


def build_engine(settings: Settings) -> EmbeddedEngine | None:
    """Not started yet. None if no backend uses it or `embedded.enabled` is false. One engine serves all
    processes of a gateway."""
    is_needed = any(backend.kind == "embedded" for backend in settings.backends)
    if not is_needed or not settings.embedded.enabled:
        return None
    return EmbeddedEngine(
        EngineOptions(
            model_path=settings.embedded.model_path,
            threads=settings.embedded.threads,
            parallel=settings.embedded.parallel,
            context_length=engine_context_length(settings),
        )
    )


def engine_context_length(settings: Settings) -> int:
    """Of each slot: the maximum of the models that use the engine, with the packaged one if the judge uses
    it."""
    engines = {backend.name for backend in settings.backends if backend.kind == "embedded"}
    context_lengths = [
        model.context_length for model in settings.models if engines.intersection(model.backends)
    ]
    if settings.judge is not None and settings.judge.backend in engines:
        context_lengths.append(PACKAGED_MODEL.context_length)
    return max(context_lengths, default=PACKAGED_MODEL.context_length)


@asynccontextmanager
async def running_engine(settings: Settings) -> AsyncIterator[EmbeddedEngine | None]:
    """Waits until the engine is ready or has failed; its status tells which. None if `build_engine` returns
    None."""
    engine = build_engine(settings)
    if engine is None:
        yield None
        return
    await engine.start()
    try:
        # It ends: each start has a time limit, and after several failed ones the state is FAILED.
        while engine.address is not None and not await engine.wait_ready(_POLL_S):
            if engine.status.state is ProcessState.FAILED:
                break
        yield engine
    finally:
        await engine.close()
