"""Encodes the turns of a prompt as the system text and the messages of a Messages request."""

import re

from tollkeeper.backends.anthropic.media import file_block, image_block
from tollkeeper.backends.anthropic.thinking import signed_blocks
from tollkeeper.backends.cache_marks import Marks
from tollkeeper.backends.conversation import ConversationWithIds
from tollkeeper.backends.prompt_content import unsupported_content
from tollkeeper.domain.prompt import File, FreeObject, Image, Media, Reasoning, ToolResult, Turn


class Input(ConversationWithIds):
    """Collects the system text and the messages of one request."""

    call_id = re.compile(r"[a-zA-Z0-9_-]{1,64}")

    def __init__(self, marks: Marks, *, takes_image_urls: bool) -> None:
        super().__init__()
        self._marks = marks
        self._takes_image_urls = takes_image_urls

    def text_block(self, text: str) -> FreeObject:
        return {"type": "text", "text": text}

    def media_block(self, media: Media) -> FreeObject:
        match media:
            case Image():
                return image_block(media, takes_urls=self._takes_image_urls)
            case File():
                return file_block(media)
        raise unsupported_content(media.place)

    def reasoning_blocks(self, reasoning: Reasoning) -> list[FreeObject]:
        return signed_blocks(reasoning)

    def call_block(self, call_id: str, name: str, arguments: FreeObject) -> FreeObject:
        return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}

    def result_block(self, result: ToolResult, turn: Turn, content: list[FreeObject]) -> FreeObject:
        block: FreeObject = {"type": "tool_result", "tool_use_id": self.answered_id(result, turn)}
        if len(content) == 1 and content[0].keys() == {"type", "text"}:
            block["content"] = content[0]["text"]
        elif content:
            block["content"] = content
        if result.is_error:
            block["is_error"] = True
        return block

    def marked(
        self, block: FreeObject | None, extra: FreeObject | None, place: str
    ) -> list[FreeObject]:
        fields = self._marks.read(extra, place)
        return [] if block is None else [{**block, **fields}]
