"""How many tokens a prompt takes, where no tokenizer can be asked: an estimate that errs high."""

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

# The largest that published formulas give for one image.
TOKENS_PER_IMAGE = 4800
# What a chat template writes around a message and around the whole.
_TOKENS_PER_TURN = 8
_TOKENS_PER_PROMPT = 16

_encode = msgspec.json.Encoder().encode


class PromptSize(msgspec.Struct, frozen=True, gc=False):
    """What a prompt consists of, as far as tokens are concerned."""

    # Of all text, tools and formats, with what a template adds.
    text_tokens: int
    images: int
    # Of files in base64.
    file_characters: int
    # There is a file, audio or video: only the backend knows how many tokens it takes.
    has_unmeasured_media: bool

    def bound(self, context_length: int) -> int:
        """No less than the prompt takes, for a hold. Media that cannot be measured may fill the
        whole context."""
        if self.has_unmeasured_media:
            return context_length
        return min(context_length, self.text_tokens + TOKENS_PER_IMAGE * self.images)

    def guess(self) -> int:
        """A number for a caller who asks. The text in a file is packed: a token for each of its
        characters is enough for most."""
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
    """Every text that a model may read."""
    texts = []
    for turn in prompt.turns:
        for part in turn.parts:
            # Nearly every part of every conversation: worth a short way.
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
    """A backend may read whatever a part has beside its own content."""
    if extra:
        yield from (_encode(value).decode() for value in extra.values() if value is not None)
