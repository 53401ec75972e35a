"""Defines the address of the embedded engine. The supervisor passes it to the workers."""

from dataclasses import dataclass, field

# Only from this machine.
ENGINE_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The same after a restart, so workers needn't be told."""

    base_url: str
    api_key: str = field(repr=False)
