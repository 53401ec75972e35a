"""Estimates the tokens of a prompt without a tokenizer. The estimate errs high.

A hold is the highest possible cost of a call, reserved before the call is sent; it needs upper
limits of all tokens and web searches.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from tollkeeper.domain.catalog import DEFAULT_TOKEN_BOUNDS, Model, TokenBounds
from tollkeeper.domain.estimate import measure_text
from tollkeeper.domain.prompt import (
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

# The tokens that count for one image if only an estimate is needed: Claude's maximum. Few images have
# more tokens.
_IMAGE_TOKENS_GUESS = 4800
# The tokens that a chat template adds around a message.
_TOKENS_PER_TURN = 8

# The number of searches that a hold covers if the client does not explicitly allow more.
WEB_SEARCHES_MAX = 10
# The maximum number of searches that a hold covers if the client allows more.
_WEB_SEARCHES_ALLOWED_MAX = 1000
# More searches than any recorded answer has made (28).
WEB_SEARCHES_SEEN_MAX = 40
# The two fields by which a client limits how often the provider's tools are used: an option of the
# request, and a property of the tool.
_REQUEST_USES_OPTION = "max_tool_calls"
_TOOL_USES_PROPERTY = "max_uses"

# The ASCII characters that Jinja's `tojson` filter escapes, and the length of an escape (`\u003c`).
_ESCAPED_FOR_HTML = "<>&'"
_ESCAPE_BYTES = 6

_encode = msgspec.json.Encoder().encode


class PromptSize(msgspec.Struct, frozen=True, gc=False):
    """Contains the quantities of a prompt that determine its tokens."""

    # An estimate of the tokens in all texts, tools and output formats, and around the turns. It
    # errs high.
    text_tokens: int
    # The bytes of the same content, plus the tokens around the turns. No tokenizer produces more
    # tokens than this.
    text_bytes: int
    images: int = 0
    files: int = 0
    audios: int = 0
    videos: int = 0
    # The number of base64 characters in all files.
    file_characters: int = 0
    has_tools: bool = False
    # The number of searches that the hold covers.
    web_searches: int = 0
    # Whether only text and tools produce tokens, as in nearly every prompt. For media and search
    # results only upper limits are known, not counts.
    is_text_only: bool = True

    @property
    def has_likely_tokens(self) -> bool:
        """Tells whether `likely_tokens` includes everything: text and images."""
        return not (self.files or self.audios or self.videos or self.web_searches)

    def sent_to(self, model: Model) -> "PromptSize":
        """Returns the size if the prompt is sent to this model. Some models search the web even if
        the request does not ask for a search."""
        unasked = model.token_bounds.unrequested_searches_max
        if self.web_searches >= unasked:
            return self
        return msgspec.structs.replace(self, web_searches=unasked, is_text_only=False)

    def bound(self, model: Model, counted: int | None = None) -> int:
        """Returns an upper limit of the prompt's tokens. `counted` is a tokenizer's count of the
        text with the chat template, if available. A medium or a search without a token limit may
        fill the context."""
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
            # Search results are input tokens, even if the search itself has no price.
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
        """Returns the most likely number of the prompt's tokens, for the charge of a call whose backend
        does not report it. `counted` is a tokenizer's count, if available, and `counts_media` tells
        whether it includes media. Unlike `bound`, the estimate adds nothing for what an unknown chat
        template may add, and nothing for files, audio, video and search results."""
        total = self.text_tokens if counted is None else counted
        if self.images and (counted is None or not counts_media):
            total += self.images * min(
                _IMAGE_TOKENS_GUESS, model.token_bounds.image or _IMAGE_TOKENS_GUESS
            )
        return min(total, model.context_length)

    def hold_bound(self, model: Model, counted: int | None = None) -> int:
        """Returns an upper limit of the prompt tokens that an answer is charged for. If the model
        reads the prompt again after each search, every reading is charged."""
        bounds, size = model.token_bounds, self
        if bounds.text_by_bytes:
            size = msgspec.structs.replace(self, text_tokens=self.text_bytes)
        if not (self.web_searches and bounds.search_rereads_prompt):
            return size.bound(model, counted)
        context, tokens_per_search = model.context_length, bounds.web_search
        first = msgspec.structs.replace(size, web_searches=0).bound(model, counted)
        if tokens_per_search is None:
            return first + self.web_searches * context
        # The model reads the prompt before the first search and again after each search.
        readings = self.web_searches + 1
        return sum(
            min(first + searches * tokens_per_search, context) for searches in range(readings)
        )

    def audio_bound(self, model: Model, bound: int) -> int:
        """Returns the maximum audio tokens of a prompt with at most `bound` tokens. Videos may have
        sound, and files may contain audio."""
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
        """Returns the estimate for a request that only asks for a token count. Counts one token for
        each base64 character of a file. This is enough for most files, even if their text is
        compressed. Ignores audio and video."""
        return self.text_tokens + _IMAGE_TOKENS_GUESS * self.images + self.file_characters


def measure_prompt(
    prompt: Prompt, bounds: TokenBounds = DEFAULT_TOKEN_BOUNDS, text: str | None = None
) -> PromptSize:
    """Measures a prompt for a model with these bounds. `text` is the result of `prompt_text`, if
    already known."""
    text_tokens, text_bytes = measure_text(prompt_text(prompt) if text is None else text)
    tokens_around = _TOKENS_PER_TURN * len(prompt.turns)
    size = PromptSize(text_tokens + tokens_around, text_bytes + tokens_around)
    if not (prompt.tools or prompt.media or prompt.web_search):
        return size
    tools, media, web_searches = prompt.tools, prompt.media, _web_searches(prompt)
    text_bytes = size.text_bytes
    if tools and bounds.text_by_bytes:
        # The bytes are used as a limit, so they have to cover every known chat template.
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
    """Returns the additional bytes that the most verbose known chat templates need for the tools,
    compared with the compact JSON in `prompt_text`. The templates of Llama 3 and 4 indent by four
    spaces, and the template filters of some servers escape non-ASCII and HTML characters."""
    compact = _encode([tool.described() for tool in tools])
    printed = msgspec.json.format(compact, indent=4).decode()
    plain = len(printed.encode("ascii", "ignore"))
    plain -= sum(printed.count(character) for character in _ESCAPED_FOR_HTML)
    # JSON has one escape for each UTF-16 code unit.
    units = len(printed.encode("utf-16-le")) // 2
    return plain + _ESCAPE_BYTES * (units - plain) - len(compact)


def _web_searches(prompt: Prompt) -> int:
    """Returns the number of searches that the hold of the call has to cover."""
    # Other tools that the provider runs count as searches, because their results become input too.
    provider_tools = [tool.written for _, tool in prompt.provider_tools] if prompt.tools else []
    if prompt.web_search is None and not provider_tools:
        return 0
    allowed = max(WEB_SEARCHES_MAX, _tool_uses_allowed(prompt, provider_tools))
    return min(allowed + _searches_to_continue(prompt), _WEB_SEARCHES_ALLOWED_MAX)


def _searches_to_continue(prompt: Prompt) -> int:
    """Returns the searches without results in earlier answers. The provider makes them when the client
    continues the answer."""
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
    """Returns every text that the model may read. Line breaks separate the texts of a message, because
    the gateway or a server joins these texts by line breaks."""
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
    """Returns the tools and the output format as JSON."""
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
    """Encodes the client's additional properties as JSON, because the model may read them too."""
    if extra:
        yield _encode(extra).decode()
