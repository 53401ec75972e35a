"""From settings to the embedded engine, where a backend is declared that needs it."""

from tollkeeper.backends.embedded import EmbeddedEngine, EngineOptions
from tollkeeper.settings import Settings


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
