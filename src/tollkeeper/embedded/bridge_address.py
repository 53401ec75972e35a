"""The address of the bridge. The supervisor passes it to the workers."""

from dataclasses import dataclass, field
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class BridgeAddress:
    """Stays the same when the bridge restarts, so that workers need not be told."""

    origin: str
    api_key: str = field(repr=False)

    def url_of(self, backend: str) -> str:
        """The base address of one backend, which speaks the chat protocol there."""
        return f"{self.origin}/{quote(backend, safe='')}/v1"
