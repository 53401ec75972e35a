"""Estimates the tokens of a prompt without a tokenizer. The estimate errs high."""

from collections.abc import Iterator

import msgspec

from tollkeeper.domain.estimate import estimate_tokens
from tollkeeper.domain.prompt import (
    File,
    FreeObject,
    Image,
    Media,
    Part,
    Prompt,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

# The largest number of tokens for one image by any published formula.
TOKENS_PER_IMAGE = 4800
# The tokens that a chat template adds around each message and around the whole prompt.
_TOKENS_PER_TURN = 8
_TOKENS_PER_PROMPT = 16

_encode = msgspec.json.Encoder().encode


class PromptSize(msgspec.Struct, frozen=True, gc=False):
    """The quantities of a prompt that determine its tokens."""

    # The tokens of all text, tools and formats, with those that a chat template adds.
    text_tokens: int
    images: int
    # The number of base64 characters of all files.
    file_characters: int
    # The prompt has a file, audio or video, whose tokens only the backend can count.
    has_unmeasured_media: bool

    def bound(self, context_length: int) -> int:
        """An upper bound of the prompt's tokens, for a hold. Media that cannot be measured count
        as the whole context."""
        if self.has_unmeasured_media:
            return context_length
        return min(context_length, self.text_tokens + TOKENS_PER_IMAGE * self.images)

    def guess(self) -> int:
        """The best estimate, for a caller who asks for a count. A file counts one token for each
        base64 character, which is enough for most files although their text is compressed."""
        return self.text_tokens + TOKENS_PER_IMAGE * self.images + self.file_characters


def measure_prompt(prompt: Prompt) -> PromptSize:
    media = prompt.media()
    images = sum(isinstance(part, Image) for part in media)
    file_characters = sum(len(part.data or "") for part in media if isinstance(part, File))
    overhead = _TOKENS_PER_PROMPT + _TOKENS_PER_TURN * len(prompt.turns)
    return PromptSize(
        text_tokens=estimate_tokens("".join(_texts(prompt))) + overhead,
        images=images,
        file_characters=file_characters,
        has_unmeasured_media=images < len(media),
    )


def _texts(prompt: Prompt) -> list[str]:
    """Every text that the model may read."""
    texts = []
    for turn in prompt.turns:
        for part in turn.parts:
            # Nearly every part is plain text, so it takes a faster path.
            if type(part) is Text and part.extra is None:
                texts.append(part.text)
            else:
                texts += _part_texts(part)
        if turn.name is not None:
            texts.append(turn.name)
        if turn.extra is not None:
            texts += _extra_texts(turn.extra)
    described = [tool.described() for tool in prompt.tools]
    described += prompt.server_tools
    if prompt.output_format is not None:
        described.append(prompt.output_format.described())
    if described:
        texts.append(_encode(described).decode())
    return texts


def _part_texts(part: Part) -> Iterator[str]:
    if isinstance(part, ToolCall):
        yield _encode(part.described()).decode()
        return
    if isinstance(part, ToolResult):
        yield part.call_id or ""
        yield part.name or ""
        for inner in part.content:
            yield from _part_texts(inner)
        return
    if isinstance(part, Reasoning):
        yield part.text
        yield from part.sealed
    elif not isinstance(part, Media):
        yield part.text
    yield from _extra_texts(part.extra)


def _extra_texts(extra: FreeObject | None) -> Iterator[str]:
    """The caller's further properties as JSON, because the model may read them too."""
    if extra:
        yield from (_encode(value).decode() for value in extra.values() if value is not None)
