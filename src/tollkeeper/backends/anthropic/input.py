"""Encodes the turns of a prompt as the system text and the messages of a Messages request.

Adjacent turns of one side become one message, because the provider wants the results of tools in
the message right after the one that called them. Content that the protocol has no block for is
refused, because the request would mean something else without it.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence

from tollkeeper.backends.anthropic.marks import Marks
from tollkeeper.backends.anthropic.media import file_block, image_block
from tollkeeper.backends.anthropic.thinking import signed_blocks
from tollkeeper.backends.prompt_content import arguments_object, unsupported_content
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import (
    Content,
    File,
    FreeObject,
    Image,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)

_USER = "user"
_ASSISTANT = "assistant"
_SYSTEM = "system"
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Input:
    """Collects the system text and the messages of one request."""

    def __init__(self, marks: Marks, *, takes_image_urls: bool) -> None:
        # The text of the system turns that come first.
        self.system: list[FreeObject] = []
        self.messages: list[FreeObject] = []
        self._marks = marks
        self._takes_image_urls = takes_image_urls
        # The last id by function name. Legacy calls have no id: a result belongs to the last call
        # of the same name.
        self._legacy_calls: dict[str, str] = {}

    def add(self, turns: Sequence[Turn]) -> "Input":
        for turn in turns:
            self._add_turn(turn)
        if not self.messages and self.system:
            # The protocol needs a message, so the system text becomes the only one.
            self._add_blocks(_USER, self.system)
            self.system = []
        return self

    def _add_turn(self, turn: Turn) -> None:
        if turn.name is not None:
            raise OptionUnsupported(
                "The backend's protocol has no field for the name of a message's author.",
                param=f"{turn.place}.name",
            )
        match turn.role:
            case Role.SYSTEM | Role.DEVELOPER if not self.messages:
                self.system += self._text_blocks(turn)
            case Role.SYSTEM | Role.DEVELOPER:
                self._add_blocks(_SYSTEM, self._text_blocks(turn))
            case Role.ASSISTANT:
                blocks = [block for part in turn.parts for block in self._answer_blocks(part, turn)]
                self._add_blocks(_ASSISTANT, blocks)
            case Role.TOOL | Role.FUNCTION:
                self._add_blocks(_USER, [self._result(part, turn) for part in turn.parts])
            case Role.USER:
                self._add_user_turn(turn)

    def _add_user_turn(self, turn: Turn) -> None:
        blocks = self._content(_contents(turn), f"{turn.place}.content")
        if not blocks:
            raise InvalidRequest("The message has no content.", param=f"{turn.place}.content")
        self._add_blocks(_USER, blocks)

    def _add_blocks(self, role: str, blocks: list[FreeObject]) -> None:
        if not blocks:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += blocks
        else:
            self.messages.append({"role": role, "content": blocks})

    def _text_blocks(self, turn: Turn) -> list[FreeObject]:
        """The blocks of a system turn, which may have text only."""
        for part in turn.parts:
            if not isinstance(part, Text | Refusal):
                raise unsupported_content(getattr(part, "place", "") or turn.place)
        return self._content(_contents(turn), f"{turn.place}.content")

    def _content(self, parts: Iterable[Content], place: str) -> list[FreeObject]:
        """Blocks of texts, images and files. An empty text is left out: the provider refuses it."""
        blocks = []
        for part in parts:
            match part:
                case Text() | Refusal():
                    fields = self._marks.read(part.extra, place)
                    if part.text:
                        blocks.append({"type": "text", "text": part.text, **fields})
                case Image():
                    block = image_block(part, takes_urls=self._takes_image_urls)
                    blocks.append({**block, **self._marks.read(part.extra, part.place)})
                case File():
                    fields = self._marks.read(part.extra, part.place)
                    blocks.append({**file_block(part), **fields})
                case _:
                    raise unsupported_content(getattr(part, "place", "") or place)
        return blocks

    def _answer_blocks(self, part: Part, turn: Turn) -> list[FreeObject]:
        match part:
            case Reasoning():
                return signed_blocks(part)
            case Text() | Refusal():
                return self._content((part,), f"{turn.place}.content")
            case ToolCall():
                return [self._call(part)]
        raise unsupported_content(getattr(part, "place", "") or turn.place)

    def _call(self, call: ToolCall) -> FreeObject:
        call_id = call.id
        if call.legacy:
            call_id = f"call_{len(self._legacy_calls)}_{len(self.messages)}"
            self._legacy_calls[call.name] = call_id
        elif not call_id:
            raise InvalidRequest("A tool call needs an id.", param=f"{call.place}.id")
        return {
            "type": "tool_use",
            "id": _accepted_id(call_id),
            "name": call.name,
            "input": arguments_object(call),
            **self._marks.read(call.extra, call.place),
        }

    def _result(self, result: Part, turn: Turn) -> FreeObject:
        if not isinstance(result, ToolResult):
            raise unsupported_content(turn.place)
        block: FreeObject = {"type": "tool_result", "tool_use_id": self._call_id(result, turn)}
        content = self._content(result.content, f"{turn.place}.content")
        if len(content) == 1 and content[0].keys() == {"type", "text"}:
            block["content"] = content[0]["text"]
        elif content:
            block["content"] = content
        return block

    def _call_id(self, result: ToolResult, turn: Turn) -> str:
        if turn.role is Role.FUNCTION:
            call_id = self._legacy_calls.get(result.name or "")
            if call_id is None:
                raise InvalidRequest(
                    "No function_call before this output has its name.", param=f"{turn.place}.name"
                )
            return call_id
        if not result.call_id:
            raise InvalidRequest(
                "The output of a tool call must name its call in tool_call_id.",
                param=f"{turn.place}.tool_call_id",
            )
        return _accepted_id(result.call_id)


def _contents(turn: Turn) -> list[Content]:
    return [part for part in turn.parts if not isinstance(part, ToolCall | ToolResult)]


def _accepted_id(call_id: str) -> str:
    """The id, or where the provider would not accept its characters, another one in its place. The
    call and its result get the same one."""
    if _CALL_ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
