"""Defines the address of the embedded engine. The supervisor passes it to the workers."""

from dataclasses import dataclass, field

# The engine is reachable from this machine only.
ENGINE_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Contains the engine's URL and API key. Both stay the same when the engine restarts, so that workers
    need not be notified."""

    base_url: str
    api_key: str = field(repr=False)
