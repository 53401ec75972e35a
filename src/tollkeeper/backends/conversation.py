"""Encodes the turns (messages) of a prompt for protocols in which a message is a list of blocks.

Adjacent turns of the same role become one message, because these protocols require the results of
all tool calls in the message right after the calls. Content for which the protocol has no block is
rejected, because the request would have another meaning without this content.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from tollkeeper.backends.prompt_content import (
    answered_call_id,
    arguments_object,
    unsupported_content,
)
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import (
    Content,
    FreeObject,
    Media,
    Part,
    Reasoning,
    Refusal,
    Role,
    SearchBlock,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)

_USER = "user"
_SYSTEM = "system"


class Conversation(ABC):
    """Collects the system text and the messages of one request. For each protocol, a subclass
    encodes the blocks."""

    assistant_role = "assistant"
    # The field of a message that contains the message's blocks.
    blocks_field = "content"
    # Whether the protocol allows a system message after other messages.
    takes_late_system = True

    def __init__(self) -> None:
        # The text blocks of the system turns before all other turns.
        self.system: list[FreeObject] = []
        self.messages: list[FreeObject] = []

    @abstractmethod
    def text_block(self, text: str) -> FreeObject: ...

    @abstractmethod
    def media_block(self, media: Media) -> FreeObject:
        """Encodes an image, audio, video or file. Raises OptionUnsupported and InvalidRequest."""

    @abstractmethod
    def marked(
        self, block: FreeObject | None, extra: FreeObject | None, place: str
    ) -> list[FreeObject]:
        """Returns the block, changed or extended as the additional properties of its part require,
        for example `cache_control`. If `block` is None, the part is empty: the properties are only
        checked, and the result is empty."""

    @abstractmethod
    def answer_blocks(self, turn: Turn) -> list[FreeObject]:
        """Returns the blocks for an earlier answer of the model."""

    @abstractmethod
    def result_block(
        self, result: ToolResult, turn: Turn, content: list[FreeObject]
    ) -> FreeObject: ...

    def add(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self._add_turn(turn)
        if not self.messages and self.system:
            # The protocol requires at least one message, so the system text becomes a user message.
            self._add_blocks(_USER, self.system)
            self.system = []

    def _add_turn(self, turn: Turn) -> None:
        if turn.name is not None and turn.role is not Role.FUNCTION:
            raise OptionUnsupported(
                "The backend's protocol has no field for the name of a message's author.",
                param=f"{turn.place}.name",
            )
        match turn.role:
            case Role.SYSTEM | Role.DEVELOPER if not self.messages:
                self.system += self._text_blocks(turn)
            case Role.SYSTEM | Role.DEVELOPER if self.takes_late_system:
                self._add_blocks(_SYSTEM, self._text_blocks(turn))
            case Role.SYSTEM | Role.DEVELOPER:
                raise OptionUnsupported(
                    "The backend's protocol allows system messages only before all other messages.",
                    param=f"{turn.place}.role",
                )
            case Role.ASSISTANT:
                self._add_blocks(self.assistant_role, self.answer_blocks(turn))
            case Role.TOOL | Role.FUNCTION:
                for part in turn.parts:
                    self._add_blocks(_USER, self._result(part, turn))
            case Role.USER:
                self._add_user_turn(turn)

    def _add_user_turn(self, turn: Turn) -> None:
        blocks = self._content(_texts_and_media(turn), f"{turn.place}.content")
        if not blocks:
            raise InvalidRequest("The message has no content.", param=f"{turn.place}.content")
        self._add_blocks(_USER, blocks)

    def _add_blocks(self, role: str, blocks: list[FreeObject]) -> None:
        if not blocks:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1][self.blocks_field] += blocks
        else:
            self.messages.append({"role": role, self.blocks_field: blocks})

    def _text_blocks(self, turn: Turn) -> list[FreeObject]:
        """Returns the blocks of a system turn. Raises OptionUnsupported if the turn contains
        anything except text."""
        for part in turn.parts:
            if not isinstance(part, Text | Refusal):
                raise unsupported_content(getattr(part, "place", "") or turn.place)
        return self._content(_texts_and_media(turn), f"{turn.place}.content")

    def _content(self, parts: Iterable[Content], place: str) -> list[FreeObject]:
        """Returns the blocks for texts and media. Omits empty texts, because providers reject empty
        text blocks."""
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

    def _result(self, result: Part, turn: Turn) -> list[FreeObject]:
        if not isinstance(result, ToolResult):
            raise unsupported_content(turn.place)
        content = self._content(result.content, f"{turn.place}.content")
        return self.marked(self.result_block(result, turn, content), result.extra, turn.place)


class ConversationWithIds(Conversation):
    """Encodes turns for protocols in which each tool call has an id, and the result of the call
    repeats the id."""

    # Matches the ids that the provider accepts.
    call_id_pattern: re.Pattern[str]

    def __init__(self) -> None:
        super().__init__()
        # The id of the last legacy call (`function_call`) of each function. The gateway creates
        # these ids, because legacy calls have none. A legacy result belongs to the last call of the
        # same function.
        self._legacy_calls: dict[str, str] = {}

    @abstractmethod
    def reasoning_blocks(self, reasoning: Reasoning) -> list[FreeObject]: ...

    def search_blocks(self, search: SearchBlock) -> list[FreeObject]:
        """Returns the block of a provider's web search, unless the protocol has no such block."""
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
        return self._accepted_id(answered_call_id(result, turn, self._legacy_calls))

    def _call(self, call: ToolCall) -> list[FreeObject]:
        call_id = call.id
        if call.legacy:
            call_id = f"call_{len(self._legacy_calls)}_{len(self.messages)}"
            self._legacy_calls[call.name] = call_id
        elif not call_id:
            raise InvalidRequest("A tool call needs an id.", param=f"{call.place}.id")
        block = self.call_block(self._accepted_id(call_id), call.name, arguments_object(call))
        return self.marked(block, call.extra, call.place)

    def _accepted_id(self, call_id: str) -> str:
        """Returns the id of a tool call if the provider accepts its form; otherwise a hash of the
        id. A call and its result have the same id, so they get the same hash."""
        if self.call_id_pattern.fullmatch(call_id):
            return call_id
        return f"call_{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _texts_and_media(turn: Turn) -> list[Content]:
    return [part for part in turn.parts if isinstance(part, Content)]
