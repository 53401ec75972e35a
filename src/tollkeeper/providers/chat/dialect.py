"""Dialects: the chat request fields that a kind of server names differently or doesn't support."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from tollkeeper.core.errors import OptionUnsupported
from tollkeeper.core.prompt import FreeObject

_IN_MESSAGES = "messages."
# A refused field with its default is removed instead of rejected: a server without it behaves as
# the default says.
_DEFAULTS: Mapping[str, object] = {"parallel_tool_calls": True, "tool_choice": "auto"}


@dataclass(frozen=True, slots=True)
class ChatDialect:
    # None means the client's.
    output_limit_field: str | None = None
    # With `stream_options`.
    include_usage: bool = True
    refused: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    # `messages.reasoning` is the field `reasoning` of every message.
    omitted: tuple[str, ...] = ()

    def change(self, body: FreeObject) -> None:
        """In place. Raises OptionUnsupported for a refused field."""
        for name in self.omitted:
            body.pop(name, None)
        _omit_in_messages(body, [name for name in self.omitted if name.startswith(_IN_MESSAGES)])
        for name in self.refused:
            if name in body and not _is_default(name, body[name]):
                raise OptionUnsupported(f"The backend does not support {name}.", param=name)
            body.pop(name, None)
        for name, server_name in self.renamed.items():
            if name in body:
                body[server_name] = body.pop(name)


def _omit_in_messages(body: FreeObject, paths: list[str]) -> None:
    """Decodes only messages whose bytes contain a field's name."""
    names = [path.removeprefix(_IN_MESSAGES) for path in paths]
    messages = body.get("messages")
    if isinstance(messages, msgspec.Raw):
        encoded = bytes(messages)
        if not any(f'"{name}"'.encode() in encoded for name in names):
            return
        messages = msgspec.json.decode(encoded)
    if names and isinstance(messages, list):
        body["messages"] = [
            {name: value for name, value in message.items() if name not in names}
            for message in messages
        ]


def _is_default(name: str, value: object) -> bool:
    if name not in _DEFAULTS:
        return False
    plain = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
    return plain == _DEFAULTS[name]


OPENAI_DIALECT = ChatDialect()
