"""Defines the embedded engine's address, which the supervisor passes to the workers."""

from dataclasses import dataclass, field

# The engine is reachable from this machine only.
ENGINE_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Stays the same when the engine restarts, so that workers need not be notified."""

    base_url: str
    api_key: str = field(repr=False)
