"""The content of a request, in one typed form for every protocol: faces decode requests into prompts, wires
encode prompts, and the estimator, the judge's transcript and the checks of features read them.

This file lists every type of part, and faces reject whatever isn't one. `place` and `param` name positions in
the client's request, for errors.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec.structs import replace

# With properties that the interface doesn't list, such as a JSON schema.
FreeObject: TypeAlias = dict[str, Any]


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    # The legacy TOOL: the function's name instead of the call's id.
    FUNCTION = "function"


class Text(msgspec.Struct, frozen=True, gc=False):
    text: str
    # Other properties of the client's part. The backend gets them, so estimates and policies count them as
    # text. `extra` of other parts means the same.
    extra: FreeObject | None = None
    # Empty unless it's an element of an array.
    place: str = ""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """In an earlier answer."""

    text: str
    extra: FreeObject | None = None
    place: str = ""


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """In an earlier answer. `sealed` values are encrypted for the backend that wrote it."""

    text: str = ""
    sealed: tuple[str, ...] = ()
    extra: FreeObject | None = None
    place: str = ""


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """In an earlier answer. `arguments` is JSON as the model wrote it."""

    id: str | None
    name: str
    arguments: str
    place: str = ""
    # The client used `function_call`.
    legacy: bool = False
    extra: FreeObject | None = None

    def described(self) -> FreeObject:
        """In the form of the chat protocol, which a chat template renders."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function, **(self.extra or {})}


class Image(msgspec.Struct, frozen=True, gc=False):
    modality: ClassVar[str] = "image"
    url: str
    detail: str | None = None
    place: str = ""
    extra: FreeObject | None = None


class Audio(msgspec.Struct, frozen=True, gc=False):
    """`data` in base64 with its format, or a URL."""

    modality: ClassVar[str] = "audio"
    data: str | None = None
    format: str | None = None
    url: str | None = None
    place: str = ""
    extra: FreeObject | None = None


class Video(msgspec.Struct, frozen=True, gc=False):
    modality: ClassVar[str] = "video"
    url: str
    place: str = ""
    extra: FreeObject | None = None


class File(msgspec.Struct, frozen=True, gc=False):
    modality: ClassVar[str] = "file"
    data: str | None = None
    id: str | None = None
    url: str | None = None
    filename: str | None = None
    place: str = ""
    extra: FreeObject | None = None


Media: TypeAlias = Image | Audio | Video | File
Content: TypeAlias = Text | Refusal | Reasoning | Media


# Blocks of the Messages protocol for the provider's web search and its results.
SERVER_TOOL_USE, SEARCH_RESULTS = "server_tool_use", "web_search_tool_result"


class ToolResult(msgspec.Struct, frozen=True, gc=False):
    """`call_id` is the tool call's. The legacy form has the function's `name` instead."""

    content: tuple[Content, ...]
    call_id: str | None
    name: str | None = None
    # The content then describes the failure.
    is_error: bool = False
    extra: FreeObject | None = None


class SearchBlock(msgspec.Struct, frozen=True, gc=False):
    """A search of an earlier answer, or its results, as the provider wrote it. Only the Messages protocol can
    carry it."""

    written: FreeObject
    place: str = ""
    extra: FreeObject | None = None

    @property
    def query(self) -> FreeObject | None:
        """None for results."""
        return self.written["input"] if self.written["type"] == SERVER_TOOL_USE else None


Part: TypeAlias = Content | ToolCall | ToolResult | SearchBlock
_ONLY_TEXT = frozenset({Text})
_TYPES_WITH_MEDIA = frozenset({Image, Audio, Video, File, ToolResult})
_parts_of_turn = attrgetter("parts")
_text, _name, _extra = attrgetter("text"), attrgetter("name"), attrgetter("extra")
_set = msgspec.structs.force_setattr


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One message. An assistant's has the reasoning, the text and the tool calls of one earlier answer."""

    role: Role
    parts: tuple[Part, ...]
    # The author's.
    name: str | None = None
    place: str = ""
    # Not of this role, but the backend gets them, so they count as text.
    extra: FreeObject | None = None


class FunctionTool(msgspec.Struct, frozen=True, gc=False):
    name: str
    description: str | None = None
    parameters: FreeObject | None = None
    strict: bool | None = None
    place: str = ""
    # The position of `parameters`.
    schema_place: str = ""
    # The client used `functions`.
    legacy: bool = False
    # Of the function object, and of the tool object around it.
    extra: FreeObject | None = None
    tool_extra: FreeObject | None = None

    def described(self) -> FreeObject:
        """In the form of the chat protocol, which a chat template renders."""
        optional = {
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }
        present = {name: value for name, value in optional.items() if value is not None}
        return {
            "type": "function",
            "function": {"name": self.name, **present, **(self.extra or {})},
            **(self.tool_extra or {}),
        }


_CLIENT_TOOL_TYPES = ("function", "custom")
_BUILTIN_FUNCTION = "builtin_function"


class OtherTool(msgspec.Struct, frozen=True, gc=False):
    """Not a function. Only a wire with the client's protocol can send it."""

    written: FreeObject
    place: str
    legacy: bool = False

    @property
    def provider_name(self) -> str | None:
        """If the provider runs the tool, such as a web search; None if the client does."""
        kind, function = self.written.get("type"), self.written.get("function")
        if self.legacy or kind in _CLIENT_TOOL_TYPES:
            return None
        if kind is None:
            # Some providers' tools have only this property: `{"googleSearch": {}}`.
            return None if function is not None else next(iter(self.written), None)
        if kind == _BUILTIN_FUNCTION and isinstance(function, dict):
            return str(function.get("name"))
        return str(kind)

    def described(self) -> FreeObject:
        return self.written


Tool: TypeAlias = FunctionTool | OtherTool


class ToolMode(StrEnum):
    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


class NamedFunction(msgspec.Struct, frozen=True, gc=False):
    name: str


def decode_arguments(arguments: str) -> dict[str, msgspec.Raw] | None:
    """Only the top level: the values stay JSON. None if it's no JSON object or nested too deeply."""
    try:
        return _json_object.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


_json_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class AllowedFunctions(msgspec.Struct, frozen=True, gc=False):
    names: tuple[str, ...]
    mode: ToolMode


class OtherChoice(msgspec.Struct, frozen=True, gc=False):
    """Any other `tool_choice`. Only a wire with the client's protocol can send it."""

    written: FreeObject


class ToolChoice(msgspec.Struct, frozen=True, gc=False):
    choice: ToolMode | NamedFunction | AllowedFunctions | OtherChoice
    param: str
    # What a chat client wrote. A chat backend gets it unchanged, so it counts as text.
    written: tuple[FreeObject, ...] = ()
    # A protocol that can't force a web search may send the search without the choice.
    may_be_dropped: bool = False


class UserLocation(msgspec.Struct, frozen=True, gc=False):
    """Approximate, for web searches."""

    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None

    def set_fields(self) -> dict[str, str]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}


class WebSearch(msgspec.Struct, frozen=True, gc=False):
    param: str
    context_size: str | None = None
    location: UserLocation | None = None
    # Of a chat request; only the chat protocol can carry them.
    extra: FreeObject | None = None
    # For one answer; only the Messages protocol can carry it.
    uses_max: int | None = None


class JsonOutput(msgspec.Struct, frozen=True, gc=False):
    param: str

    def described(self) -> FreeObject:
        return {"type": "json_object"}


class SchemaOutput(msgspec.Struct, frozen=True, gc=False):
    name: str
    schema: FreeObject
    param: str
    schema_place: str
    description: str | None = None
    strict: bool | None = None

    def described(self) -> FreeObject:
        optional = {"description": self.description, "strict": self.strict}
        present = {name: value for name, value in optional.items() if value is not None}
        return {
            "type": "json_schema",
            "json_schema": {"name": self.name, "schema": self.schema, **present},
        }


OutputFormat: TypeAlias = JsonOutput | SchemaOutput


class OutputModality(msgspec.Struct, frozen=True, gc=False):
    name: str
    param: str


class Sampling(msgspec.Struct, frozen=True, gc=False):
    """None: the backend's own default."""

    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None

    def set_fields(self) -> dict[str, float | str | list[str] | dict[str, float]]:
        if self == DEFAULT_SAMPLING:
            return {}
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }


DEFAULT_SAMPLING = Sampling()


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    param: str
    # Alternatives for each token.
    top: int | None = None


class ReasoningWish(msgspec.Struct, frozen=True, gc=False):
    """`params` are the request fields that ask for reasoning."""

    params: tuple[str, ...]
    effort: str | None = None
    # `effort` asks for reasoning by itself. Not in the Messages protocol.
    asks_by_effort: bool = True


class CachingWish(msgspec.Struct, frozen=True, gc=False):
    """For the backend's prefix cache. Hashes that differ between projects, so the backend never sees the
    client's values."""

    key: str | None = None
    salt: str | None = None
    # By the client. Otherwise the gateway added it.
    salt_is_asked: bool = False


_NO_CACHING_WISH = CachingWish()


class Identity(msgspec.Struct, frozen=True, gc=False):
    """The end user, for the backend's abuse checks and records."""

    user: str | None = None
    safety_identifier: str | None = None
    metadata: FreeObject | None = None

    @property
    def short_user(self) -> str | None:
        """OpenAI takes 64 characters; a longer name becomes its SHA-256."""
        user = self.user
        if user is None or len(user) <= _USER_LENGTH_MAX:
            return user
        return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()


_USER_LENGTH_MAX = 64
_ANONYMOUS = Identity()


class Option(msgspec.Struct, frozen=True, gc=False):
    """A field that not every backend supports. The model's `options` map its name to the backend's field;
    without an entry the model lacks it. `value` is JSON."""

    name: str
    value: object
    param: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    # Of a Messages request, run by the provider, unchanged and not in `tools`. They count as text, but a chat
    # template doesn't render them.
    server_tools: tuple[FreeObject, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    web_search: WebSearch | None = None
    output_format: OutputFormat | None = None
    output_modalities: tuple[OutputModality, ...] = ()
    sampling: Sampling = DEFAULT_SAMPLING
    logprobs: Logprobs | None = None
    reasoning: ReasoningWish | None = None
    caching: CachingWish = _NO_CACHING_WISH
    identity: Identity = _ANONYMOUS
    options: tuple[Option, ...] = ()
    # (`SearchBlock`)
    reads_search_blocks: bool = False
    # The bytes of a chat request, by field. The chat wire sends these; everything else reads the typed
    # fields.
    written: Mapping[str, msgspec.Raw] | None = None

    # If each turn is just one text (no other parts, names or properties), otherwise None. Computed, unless
    # the creator knows. Whoever replaces the turns must set it to None, so that it's computed again.
    texts: tuple[str, ...] | None = None
    # Of the turns, also inside tool results. Computed.
    media: tuple[Media, ...] = ()

    def __post_init__(self) -> None:
        if self.texts is not None:
            return
        turns = self.turns
        parts = tuple(chain.from_iterable(map(_parts_of_turn, turns)))
        media: tuple[Media, ...] = ()
        if _ONLY_TEXT.issuperset(map(type, parts)):
            others = chain(map(_name, turns), map(_extra, chain(parts, turns)))
            if len(parts) == len(turns) and not any(others):
                _set(self, "texts", tuple(map(_text, parts)))
        elif not _TYPES_WITH_MEDIA.isdisjoint(map(type, parts)):
            contents = [part.content if isinstance(part, ToolResult) else (part,) for part in parts]
            found = chain.from_iterable(contents)
            media = tuple(part for part in found if isinstance(part, Media))
        _set(self, "media", media)

    def cache_marks(self) -> list[FreeObject]:
        """All that the client wrote in parts and tools."""
        objects: list[FreeObject | None] = []
        for turn in self.turns:
            for part in turn.parts:
                contents = part.content if isinstance(part, ToolResult) else ()
                objects += [content.extra for content in (part, *contents)]
        for tool in self.tools:
            if isinstance(tool, FunctionTool):
                objects += [tool.extra, tool.tool_extra]
            else:
                objects.append(tool.written)
        marks = (properties.get("cache_control") for properties in objects if properties)
        return [mark for mark in marks if isinstance(mark, dict)]

    @property
    def provider_tools(self) -> list[tuple[str, OtherTool]]:
        """Those in `tools` that the provider runs, by name."""
        return [
            (name, tool)
            for tool in self.tools
            if isinstance(tool, OtherTool) and (name := tool.provider_name) is not None
        ]

    @property
    def allowed_functions(self) -> list[FunctionTool]:
        functions = [tool for tool in self.tools if isinstance(tool, FunctionTool)]
        choice = None if self.tool_choice is None else self.tool_choice.choice
        if not isinstance(choice, AllowedFunctions):
            return functions
        names = set(choice.names)
        return [tool for tool in functions if tool.name in names]

    @property
    def has_legacy_functions_only(self) -> bool:
        return bool(self.tools) and all(tool.legacy for tool in self.tools)

    def with_seed(self, seed: int) -> "Prompt":
        written = self.written
        if written is not None:
            written = {**written, "seed": msgspec.Raw(str(seed).encode())}
        return replace(self, sampling=replace(self.sampling, seed=seed), written=written)

    def with_turns(self, turns: tuple[Turn, ...]) -> "Prompt":
        assert self.written is None, "the original bytes would still contain the old turns"
        return replace(self, turns=turns, texts=None)
