"""How the fields of a chat request differ on one kind of server."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from tollkeeper.domain.errors import OptionUnsupported
from tollkeeper.domain.prompt import FreeObject

# Values that ask for what a server without the field does anyway. They are left out.
_DEFAULTS: Mapping[str, object] = {"parallel_tool_calls": True, "tool_choice": "auto"}


@dataclass(frozen=True, slots=True)
class ChatDialect:
    # The field that bounds the output; None: the one that the caller used.
    output_bound_field: str | None = None
    include_usage: bool = True
    refused: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()

    def change(self, body: FreeObject) -> None:
        """Raises OptionUnsupported for a field that the server does not have."""
        for name in self.omitted:
            body.pop(name, None)
        for name in self.refused:
            if name in body and not _is_default(name, body[name]):
                raise OptionUnsupported(f"The backend does not support {name}.", param=name)
            body.pop(name, None)
        for name, other in self.renamed.items():
            if name in body:
                body[other] = body.pop(name)


def _is_default(name: str, value: object) -> bool:
    if name not in _DEFAULTS:
        return False
    plain = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
    return plain == _DEFAULTS[name]


OPENAI_DIALECT = ChatDialect()
