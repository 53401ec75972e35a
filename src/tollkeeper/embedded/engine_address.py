"""Where the embedded engine answers: handed from the process that keeps it to those that use it."""

from dataclasses import dataclass, field

# It answers this machine only.
ENGINE_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Stable over the engine's restarts, so that nobody has to be told of one."""

    base_url: str
    api_key: str = field(repr=False)
