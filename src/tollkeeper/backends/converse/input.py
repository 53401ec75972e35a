"""Encodes the turns (messages) of a prompt as the system text and the messages of a Converse
request."""

import re

from tollkeeper.backends.cache_marks import Marks
from tollkeeper.backends.conversation import ConversationWithIds
from tollkeeper.backends.converse.media import Documents, audio_block, image_block, video_block
from tollkeeper.backends.converse.reasoning import signed_blocks
from tollkeeper.domain.prompt import (
    Audio,
    File,
    FreeObject,
    Image,
    Media,
    Part,
    Reasoning,
    ToolResult,
    Turn,
    Video,
)

_POINT = "cachePoint"


class Input(ConversationWithIds):
    """Collects the system text and the messages of one request."""

    call_id_pattern = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")

    def __init__(self, cache_marks: Marks) -> None:
        super().__init__()
        self._cache_marks = cache_marks
        self._documents = Documents()

    def text_block(self, text: str) -> FreeObject:
        return {"text": text}

    def media_block(self, media: Media) -> FreeObject:
        match media:
            case Image():
                return image_block(media)
            case File():
                return self._documents.block(media)
            case Video():
                return video_block(media)
            case Audio():
                return audio_block(media)

    def reasoning_blocks(self, reasoning: Reasoning) -> list[FreeObject]:
        return signed_blocks(reasoning)

    def call_block(self, call_id: str, name: str, arguments: FreeObject) -> FreeObject:
        return {"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}}

    def result_block(self, result: ToolResult, turn: Turn, content: list[FreeObject]) -> FreeObject:
        tool_result: FreeObject = {"toolUseId": self.answered_id(result, turn), "content": content}
        if result.is_error:
            tool_result["status"] = "error"
        return {"toolResult": tool_result}

    def _result(self, result: Part, turn: Turn) -> list[FreeObject]:
        """Returns the block of a tool result. The protocol allows no cache point inside the block, so
        the last cache point goes after the block."""
        block, *after = super()._result(result, turn)
        content = block["toolResult"]["content"]
        points = [item for item in (*content, *after) if _POINT in item]
        block["toolResult"]["content"] = [item for item in content if _POINT not in item]
        return [block, *points[-1:]]

    def marked(
        self, block: FreeObject | None, extra: FreeObject | None, place: str
    ) -> list[FreeObject]:
        """Returns the block, and a cache point after the block if `extra` has a cache mark."""
        point = cache_point(self._cache_marks.read(extra, place).get("cache_control"))
        return [] if block is None else [block, *point]


def cache_point(mark: FreeObject | None) -> list[FreeObject]:
    """Returns the block for a cache mark: the provider caches the prompt up to this block. Returns no
    block if there is no mark."""
    if mark is None:
        return []
    point = {"type": "default"}
    if mark.get("ttl") == "1h":
        point["ttl"] = "1h"
    return [{_POINT: point}]
