"""Walks a prompt's turns, and encodes them for protocols whose messages are lists of blocks.
Content without a field in the protocol is rejected, because without it the request would mean
something else."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.prompt import (
    Content,
    FreeObject,
    Media,
    Reasoning,
    Refusal,
    Role,
    SearchBlock,
    Text,
    ToolCall,
    ToolResult,
    Turn,
    decode_arguments,
)
from tollkeeper.providers.request_fields import unsupported_content

_USER = "user"
_SYSTEM = "system"


class Walk(ABC):
    def __init__(self) -> None:
        # Legacy calls (`function_call`) have no ids, so the gateway creates them. A legacy
        # result belongs to the function's last call.
        self._legacy_calls: dict[str, str] = {}

    def add(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            if turn.name is not None:
                raise OptionUnsupported(
                    "The backend's protocol has no field for the name of a message's author.",
                    param=f"{turn.place}.name",
                )
            match turn.role:
                case Role.ASSISTANT:
                    self._add_answer(turn)
                case Role.TOOL | Role.FUNCTION:
                    for part in turn.parts:
                        if not isinstance(part, ToolResult):
                            raise unsupported_content(turn.place)
                        self._add_result(part, turn)
                case _:
                    self._add_message(turn)

    @abstractmethod
    def _add_message(self, turn: Turn) -> None:
        """For the user, the system or the developer."""

    @abstractmethod
    def _add_answer(self, turn: Turn) -> None: ...

    @abstractmethod
    def _add_result(self, result: ToolResult, turn: Turn) -> None: ...

    def _id_of(self, call: ToolCall, legacy_id: str) -> str:
        if call.legacy:
            self._legacy_calls[call.name] = legacy_id
            return legacy_id
        if not call.id:
            raise InvalidRequest("A tool call needs an id.", param=f"{call.place}.id")
        return call.id

    def _answered_id(self, result: ToolResult, turn: Turn) -> str:
        if turn.role is Role.FUNCTION:
            call_id = self._legacy_calls.get(result.name or "")
            if call_id is None:
                raise InvalidRequest(
                    "No earlier function_call has the name in this output.",
                    param=f"{turn.place}.name",
                )
            return call_id
        if not result.call_id:
            raise InvalidRequest(
                "The output of a tool call must name its call in tool_call_id.",
                param=f"{turn.place}.tool_call_id",
            )
        return result.call_id


class Conversation(Walk):
    """Adjacent turns of a role become one message, because the results of all tool calls must be in
    the message right after them. Each protocol's subclass encodes the blocks."""

    assistant_role = "assistant"
    # In a message.
    blocks_field = "content"
    # A system message after others.
    takes_late_system = True

    def __init__(self) -> None:
        super().__init__()
        # Of system turns before all others.
        self.system: list[FreeObject] = []
        self.messages: list[FreeObject] = []

    @abstractmethod
    def text_block(self, text: str) -> FreeObject: ...

    @abstractmethod
    def media_block(self, media: Media) -> FreeObject: ...

    @abstractmethod
    def marked(
        self, block: FreeObject | None, extra: FreeObject | None, place: str
    ) -> list[FreeObject]:
        """Changed or extended as the part's additional properties (such as `cache_control`)
        require. None means the part is empty: the properties are only checked."""

    @abstractmethod
    def answer_blocks(self, turn: Turn) -> list[FreeObject]: ...

    @abstractmethod
    def result_block(
        self, result: ToolResult, turn: Turn, content: list[FreeObject]
    ) -> FreeObject: ...

    def add(self, turns: Sequence[Turn]) -> None:
        super().add(turns)
        if not self.messages and self.system:
            # At least one message is required.
            self._add_blocks(_USER, self.system)
            self.system = []

    def _add_message(self, turn: Turn) -> None:
        place = f"{turn.place}.content"
        if turn.role is Role.USER:
            blocks = self._content((p for p in turn.parts if isinstance(p, Content)), place)
            if not blocks:
                raise InvalidRequest("The message has no content.", param=place)
            self._add_blocks(_USER, blocks)
            return
        if self.messages and not self.takes_late_system:
            raise OptionUnsupported(
                "The backend's protocol allows system messages only before all other messages.",
                param=f"{turn.place}.role",
            )
        texts = [part for part in turn.parts if isinstance(part, Text | Refusal)]
        for part in turn.parts:
            if not isinstance(part, Text | Refusal):
                raise unsupported_content(getattr(part, "place", "") or turn.place)
        if self.messages:
            self._add_blocks(_SYSTEM, self._content(texts, place))
        else:
            self.system += self._content(texts, place)

    def _add_answer(self, turn: Turn) -> None:
        self._add_blocks(self.assistant_role, self.answer_blocks(turn))

    def _add_result(self, result: ToolResult, turn: Turn) -> None:
        content = self._content(result.content, f"{turn.place}.content")
        block = self.result_block(result, turn, content)
        self._add_blocks(_USER, self.marked(block, result.extra, turn.place))

    def _add_blocks(self, role: str, blocks: list[FreeObject]) -> None:
        if not blocks:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1][self.blocks_field] += blocks
        else:
            self.messages.append({"role": role, self.blocks_field: blocks})

    def _content(self, parts: Iterable[Content], place: str) -> list[FreeObject]:
        """Without empty texts, which providers reject."""
        blocks: list[FreeObject] = []
        for part in parts:
            match part:
                case Text() | Refusal():
                    block = self.text_block(part.text) if part.text else None
                    blocks += self.marked(block, part.extra, part.place or place)
                case Reasoning():
                    raise unsupported_content(part.place or place)
                case _:
                    blocks += self.marked(self.media_block(part), part.extra, part.place)
        return blocks


class ConversationWithIds(Conversation):
    """For protocols whose tool results repeat the call's id."""

    # Of ids that the provider accepts.
    call_id_pattern: re.Pattern[str]

    @abstractmethod
    def reasoning_blocks(self, reasoning: Reasoning) -> list[FreeObject]: ...

    def search_blocks(self, search: SearchBlock) -> list[FreeObject]:
        raise unsupported_content(search.place)

    @abstractmethod
    def call_block(self, call_id: str, name: str, arguments: FreeObject) -> FreeObject: ...

    def answer_blocks(self, turn: Turn) -> list[FreeObject]:
        blocks: list[FreeObject] = []
        for part in turn.parts:
            match part:
                case Reasoning():
                    blocks += self.reasoning_blocks(part)
                case Text() | Refusal():
                    blocks += self._content((part,), f"{turn.place}.content")
                case ToolCall():
                    blocks += self._call(part)
                case SearchBlock():
                    blocks += self.search_blocks(part)
                case _:
                    raise unsupported_content(getattr(part, "place", "") or turn.place)
        return blocks

    def answered_id(self, result: ToolResult, turn: Turn) -> str:
        return self._accepted_id(self._answered_id(result, turn))

    def _call(self, call: ToolCall) -> list[FreeObject]:
        call_id = self._id_of(call, f"call_{len(self._legacy_calls)}_{len(self.messages)}")
        block = self.call_block(self._accepted_id(call_id), call.name, arguments_object(call))
        return self.marked(block, call.extra, call.place)

    def _accepted_id(self, call_id: str) -> str:
        """A hash of an id that the provider wouldn't accept, the same for the call and its
        result."""
        if self.call_id_pattern.fullmatch(call_id):
            return call_id
        return f"call_{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def arguments_object(call: ToolCall) -> FreeObject:
    """Decodes only the top level; the values stay JSON. An empty text means no arguments."""
    decoded = decode_arguments(call.arguments.strip() or "{}")
    if decoded is None:
        raise InvalidRequest(
            "The arguments of the call are not a JSON object, or are nested too deeply.",
            param=call.place,
        )
    return dict(decoded)
