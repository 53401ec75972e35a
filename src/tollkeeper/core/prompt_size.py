"""Estimates the tokens of a prompt without a tokenizer, and gives upper limits of tokens and web searches for
holds. It errs high."""

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from tollkeeper.core.catalog import DEFAULT_TOKEN_BOUNDS, Model, TokenBounds
from tollkeeper.core.estimate import measure_text
from tollkeeper.core.prompt import (
    SERVER_TOOL_USE,
    Audio,
    File,
    FreeObject,
    Image,
    Media,
    Part,
    Prompt,
    Reasoning,
    SearchBlock,
    Tool,
    ToolCall,
    ToolResult,
    Video,
)

# For an estimate: Claude's maximum. Few images have more.
_IMAGE_TOKENS_GUESS = 4800
# That a chat template adds.
_TOKENS_PER_TURN = 8

# What a hold covers unless the client allows more.
WEB_SEARCHES_MAX = 10
# And at most if it does.
_WEB_SEARCHES_ALLOWED_MAX = 1000
# The most of any recorded answer is 28.
WEB_SEARCHES_SEEN_MAX = 40
# Where a client limits the provider's tools: an option of the request, and a property of the tool.
_REQUEST_USES_OPTION = "max_tool_calls"
_TOOL_USES_PROPERTY = "max_uses"

# Jinja's `tojson` escapes these, as `\u003c`.
_ESCAPED_FOR_HTML = "<>&'"
_ESCAPE_BYTES = 6

_encode = msgspec.json.Encoder().encode


class PromptSize(msgspec.Struct, frozen=True, gc=False):
    # Of all texts, tools and output formats, and around the turns. Errs high.
    text_tokens: int
    # Of the same, plus the tokens around the turns. No tokenizer makes more tokens.
    text_bytes: int
    images: int = 0
    files: int = 0
    audios: int = 0
    videos: int = 0
    # In base64.
    file_characters: int = 0
    has_tools: bool = False
    # That the hold covers.
    web_searches: int = 0
    # As in nearly every prompt. Media and search results only have limits, no counts.
    is_text_only: bool = True

    @property
    def has_likely_tokens(self) -> bool:
        """`likely_tokens` then has everything."""
        return not (self.files or self.audios or self.videos or self.web_searches)

    def sent_to(self, model: Model) -> "PromptSize":
        """Some models search unasked."""
        unasked = model.token_bounds.unrequested_searches_max
        if self.web_searches >= unasked:
            return self
        return msgspec.structs.replace(self, web_searches=unasked, is_text_only=False)

    def bound(self, model: Model, counted: int | None = None) -> int:
        """`counted` is a tokenizer's count of the text with the template. A medium or a search without a
        limit may fill the context."""
        bounds = model.token_bounds
        total = counted
        if total is None:
            total = self.text_tokens + bounds.template + (bounds.tools if self.has_tools else 0)
        context = model.context_length
        if self.is_text_only:
            return total if total < context else context
        media = (
            (self.images, bounds.image),
            (self.files, bounds.file),
            (self.audios, bounds.audio),
            (self.videos, bounds.video),
            # Results are input, even if the search has no price.
            (self.web_searches, bounds.web_search),
        )
        for count, tokens in media:
            if count and tokens is None:
                return context
            total += count * (tokens or 0)
        return min(total, context)

    def likely_tokens(
        self, model: Model, counted: int | None = None, *, counts_media: bool = False
    ) -> int:
        """For the charge if the backend reports nothing. `counted` is a tokenizer's count, with media if
        `counts_media`. Unlike `bound`, it adds nothing for what an unknown template may add, nor for files,
        audio, video and search results."""
        total = self.text_tokens if counted is None else counted
        if self.images and (counted is None or not counts_media):
            total += self.images * min(
                _IMAGE_TOKENS_GUESS, model.token_bounds.image or _IMAGE_TOKENS_GUESS
            )
        return min(total, model.context_length)

    def hold_bound(self, model: Model, counted: int | None = None) -> int:
        """What an answer may be charged for: a model may read the prompt again after each search."""
        bounds, size = model.token_bounds, self
        if bounds.text_by_bytes:
            size = msgspec.structs.replace(self, text_tokens=self.text_bytes)
        if not (self.web_searches and bounds.search_rereads_prompt):
            return size.bound(model, counted)
        context, tokens_per_search = model.context_length, bounds.web_search
        first = msgspec.structs.replace(size, web_searches=0).bound(model, counted)
        if tokens_per_search is None:
            return first + self.web_searches * context
        # Before the first search, and after each.
        readings = self.web_searches + 1
        return sum(
            min(first + searches * tokens_per_search, context) for searches in range(readings)
        )

    def audio_bound(self, model: Model, bound: int) -> int:
        """Videos may have sound, and files audio."""
        if self.is_text_only:
            return 0
        bounds = model.token_bounds
        audio_tokens = 0
        for count, tokens in (
            (self.audios, bounds.audio),
            (self.videos, bounds.video),
            (self.files, bounds.file),
        ):
            if count and tokens is None:
                return bound
            audio_tokens += count * (tokens or 0)
        return min(audio_tokens, bound)

    def guess(self) -> int:
        """For requests that only count tokens. One for each base64 character of a file, enough for most even
        if compressed. Ignores audio and video."""
        return self.text_tokens + _IMAGE_TOKENS_GUESS * self.images + self.file_characters


def measure_prompt(
    prompt: Prompt, bounds: TokenBounds = DEFAULT_TOKEN_BOUNDS, text: str | None = None
) -> PromptSize:
    """`text` is `prompt_text`, if already known."""
    text_tokens, text_bytes = measure_text(prompt_text(prompt) if text is None else text)
    tokens_around = _TOKENS_PER_TURN * len(prompt.turns)
    size = PromptSize(text_tokens + tokens_around, text_bytes + tokens_around)
    if not (prompt.tools or prompt.media or prompt.web_search):
        return size
    tools, media, web_searches = prompt.tools, prompt.media, _web_searches(prompt)
    text_bytes = size.text_bytes
    if tools and bounds.text_by_bytes:
        # The bytes are a limit, so they cover every known template.
        text_bytes += _bytes_added_by_templates(tools)
    return msgspec.structs.replace(
        size,
        text_bytes=text_bytes,
        images=sum(isinstance(part, Image) for part in media),
        files=sum(isinstance(part, File) for part in media),
        audios=sum(isinstance(part, Audio) for part in media),
        videos=sum(isinstance(part, Video) for part in media),
        file_characters=sum(len(part.data or "") for part in media if isinstance(part, File)),
        has_tools=bool(tools),
        web_searches=web_searches,
        is_text_only=not (media or web_searches),
    )


def _bytes_added_by_templates(tools: tuple[Tool, ...]) -> int:
    """What the most verbose known templates need more than the compact JSON of `prompt_text`: Llama 3 and 4
    indent by four spaces, and some servers' filters escape non-ASCII and HTML."""
    compact = _encode([tool.described() for tool in tools])
    printed = msgspec.json.format(compact, indent=4).decode()
    plain = len(printed.encode("ascii", "ignore"))
    plain -= sum(printed.count(character) for character in _ESCAPED_FOR_HTML)
    # An escape for each.
    units = len(printed.encode("utf-16-le")) // 2
    return plain + _ESCAPE_BYTES * (units - plain) - len(compact)


def _web_searches(prompt: Prompt) -> int:
    # Other tools of the provider count too, because their results become input.
    provider_tools = [tool.written for _, tool in prompt.provider_tools] if prompt.tools else []
    if prompt.web_search is None and not provider_tools:
        return 0
    allowed = max(WEB_SEARCHES_MAX, _tool_uses_allowed(prompt, provider_tools))
    return min(allowed + _searches_to_continue(prompt), _WEB_SEARCHES_ALLOWED_MAX)


def _searches_to_continue(prompt: Prompt) -> int:
    """Earlier answers' searches without results, which the provider makes when the answer goes on."""
    blocks = [
        part.written
        for turn in prompt.turns
        for part in turn.parts
        if isinstance(part, SearchBlock)
    ]
    answered = {block.get("tool_use_id") for block in blocks}
    return sum(block["type"] == SERVER_TOOL_USE and block["id"] not in answered for block in blocks)


def _tool_uses_allowed(prompt: Prompt, provider_tools: list[FreeObject]) -> int:
    limits: list[object] = [tool.get(_TOOL_USES_PROPERTY) for tool in provider_tools]
    limits += [option.value for option in prompt.options if option.name == _REQUEST_USES_OPTION]
    return max([limit for limit in limits if isinstance(limit, int)], default=0)


def prompt_text(prompt: Prompt) -> str:
    """Every text that the model may read. Line breaks separate a message's texts, because the gateway or a
    server joins them so."""
    texts: Iterable[str] | None = prompt.texts
    if texts is None:
        texts = []
        for turn in prompt.turns:
            texts.append("\n".join(chain.from_iterable(map(_part_texts, turn.parts))))
            texts.append(turn.name or "")
            texts += _extra_texts(turn.extra)
    if prompt.tools or prompt.server_tools or prompt.output_format is not None:
        texts = [*texts, _described(prompt)]
    return "".join(texts)


def _described(prompt: Prompt) -> str:
    described = [tool.described() for tool in prompt.tools]
    described += prompt.server_tools
    if prompt.output_format is not None:
        described.append(prompt.output_format.described())
    return _encode(described).decode()


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
    if isinstance(part, SearchBlock):
        yield _encode(part.written).decode()
    elif isinstance(part, Reasoning):
        yield part.text
        yield from part.sealed
    elif not isinstance(part, Media):
        yield part.text
    yield from _extra_texts(part.extra)


def _extra_texts(extra: FreeObject | None) -> Iterator[str]:
    """The model may read them too."""
    if extra:
        yield _encode(extra).decode()
