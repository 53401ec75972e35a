"""Defines the prompt: the content of a request, in one typed form for every protocol.

Faces (chat, Responses, Messages) decode their requests into it; wires encode their requests from
it; the estimator, the transcript and the gate read it. This file lists every type of part, and a
face rejects content that it cannot convert to one of them. `place` and `param` name the position in
the client's request, for error messages.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec.structs import replace

# A JSON object with properties that the interface does not list, such as a JSON schema.
FreeObject: TypeAlias = dict[str, Any]


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    # The legacy form of TOOL: the message names the function instead of the call's id.
    FUNCTION = "function"


class Text(msgspec.Struct, frozen=True, gc=False):
    text: str
    # Additional properties of the client's part. The backend gets them, so they count as text.
    extra: FreeObject | None = None


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Represents the model's refusal in an earlier answer."""

    text: str
    extra: FreeObject | None = None


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """Represents the reasoning of an earlier answer: text, or `sealed` values that only its backend
    reads."""

    text: str = ""
    sealed: tuple[str, ...] = ()
    extra: FreeObject | None = None


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """Represents a tool call of an earlier answer. `arguments` is JSON as the model wrote it."""

    id: str | None
    name: str
    arguments: str
    place: str = ""
    legacy: bool = False
    extra: FreeObject | None = None

    def described(self) -> FreeObject:
        """Returns the call in the form of the chat protocol, which a chat template renders."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function, **(self.extra or {})}


class Image(msgspec.Struct, frozen=True, gc=False):
    modality: ClassVar[str] = "image"
    url: str
    detail: str | None = None
    place: str = ""
    extra: FreeObject | None = None


class Audio(msgspec.Struct, frozen=True, gc=False):
    """Contains either `data` in base64 with its format, or a URL."""

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


class ToolResult(msgspec.Struct, frozen=True, gc=False):
    """Contains a tool's result. `call_id` names the call; the legacy form names the function."""

    content: tuple[Content, ...]
    call_id: str | None
    name: str | None = None
    # The tool failed, and the content explains it.
    is_error: bool = False
    extra: FreeObject | None = None


Part: TypeAlias = Content | ToolCall | ToolResult
_MEDIA_PLACES = frozenset({Image, Audio, Video, File, ToolResult})
_parts_of_turn = attrgetter("parts")
_set = msgspec.structs.force_setattr


class Turn(msgspec.Struct, frozen=True, gc=False):
    """Represents one message of the conversation. An assistant's turn has its reasoning, text and calls."""

    role: Role
    parts: tuple[Part, ...]
    # The name of the message's author.
    name: str | None = None
    place: str = ""
    # Properties without a meaning for the role. The backend gets them, so they count as text.
    extra: FreeObject | None = None


class FunctionTool(msgspec.Struct, frozen=True, gc=False):
    """Represents a function that the model may call."""

    name: str
    description: str | None = None
    parameters: FreeObject | None = None
    strict: bool | None = None
    place: str = ""
    # The place of the parameters in the client's request.
    schema_place: str = ""
    # The client used the legacy field `functions`.
    legacy: bool = False
    # Additional properties of the function object, and of the tool object around it.
    extra: FreeObject | None = None
    tool_extra: FreeObject | None = None

    def described(self) -> FreeObject:
        """Returns the tool in the form of the chat protocol, which a chat template renders."""
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
    """Represents a tool that is not a function. Only the protocol of the client's request can transmit
    it."""

    written: FreeObject
    place: str
    legacy: bool = False

    @property
    def provider_name(self) -> str | None:
        """Returns the name of a tool that the model's provider runs, such as a web search; None if
        the client runs the tool, like functions and custom tools."""
        kind, function = self.written.get("type"), self.written.get("function")
        if self.legacy or kind in _CLIENT_TOOL_TYPES:
            return None
        if kind is None:
            # Some providers name a tool by its only property: `{"googleSearch": {}}`.
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
    """The model must call this function."""

    name: str


class AllowedFunctions(msgspec.Struct, frozen=True, gc=False):
    """The model may call only these functions."""

    names: tuple[str, ...]
    mode: ToolMode


class OtherChoice(msgspec.Struct, frozen=True, gc=False):
    """Represents another kind of choice. Only the protocol of the client's request can transmit it."""

    written: FreeObject


class ToolChoice(msgspec.Struct, frozen=True, gc=False):
    choice: ToolMode | NamedFunction | AllowedFunctions | OtherChoice
    param: str
    # The objects that a chat client wrote. A chat backend gets them unchanged, so they count as
    # text.
    written: tuple[FreeObject, ...] = ()


class UserLocation(msgspec.Struct, frozen=True, gc=False):
    """The user's approximate location, for web searches."""

    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None

    def given(self) -> dict[str, str]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}


class WebSearch(msgspec.Struct, frozen=True, gc=False):
    """The model may search the web."""

    param: str
    context_size: str | None = None
    location: UserLocation | None = None
    # Additional options of a chat request. Only the chat protocol can transmit them.
    extra: FreeObject | None = None
    # The maximum number of searches of one answer. Only the Messages protocol can transmit it.
    uses_max: int | None = None


class JsonOutput(msgspec.Struct, frozen=True, gc=False):
    """The answer is a JSON object of any shape."""

    param: str

    def described(self) -> FreeObject:
        return {"type": "json_object"}


class SchemaOutput(msgspec.Struct, frozen=True, gc=False):
    """The answer is JSON that follows this schema."""

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
    """Controls how the backend samples tokens. None means the backend's own default."""

    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None

    def given(self) -> dict[str, float | str | list[str] | dict[str, float]]:
        if self == _DEFAULT_SAMPLING:
            return {}
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }


_DEFAULT_SAMPLING = Sampling()


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    """The answer contains log-probabilities."""

    param: str
    # The number of alternatives to list for each token.
    top: int | None = None


class ReasoningWish(msgspec.Struct, frozen=True, gc=False):
    """Tells how much the model should reason. `params` are the request fields that ask for it."""

    params: tuple[str, ...]
    effort: str | None = None
    # Whether the effort alone requests reasoning. In the Messages protocol it does not.
    asks_by_effort: bool = True


class CachingWish(msgspec.Struct, frozen=True, gc=False):
    """Contains hints for the backend's prefix cache: hashes that differ by tenant, not the client's
    text."""

    key: str | None = None
    salt: str | None = None
    # Whether the client requests the salt; otherwise the gateway adds it if a backend can use it.
    salt_is_asked: bool = False


_NO_CACHING_WISH = CachingWish()


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Identifies the client's own user, for the backend's abuse checks and records."""

    user: str | None = None
    safety_identifier: str | None = None
    metadata: FreeObject | None = None

    @property
    def short_user(self) -> str | None:
        """Returns the user in at most 64 characters, the maximum of OpenAI: a longer name is
        replaced by its digest."""
        user = self.user
        if user is None or len(user) <= _USER_LENGTH_MAX:
            return user
        return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()


_USER_LENGTH_MAX = 64
_ANONYMOUS = Identity()


class Option(msgspec.Struct, frozen=True, gc=False):
    """Represents an option without a published meaning. The model's `options` map it to a field of the
    backend; a model without such an entry does not support the option. `value` is JSON."""

    name: str
    value: object
    param: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    # Tools that the model's provider runs. They count as text, but no chat template renders them.
    server_tools: tuple[FreeObject, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    web_search: WebSearch | None = None
    output_format: OutputFormat | None = None
    output_modalities: tuple[OutputModality, ...] = ()
    sampling: Sampling = _DEFAULT_SAMPLING
    logprobs: Logprobs | None = None
    reasoning: ReasoningWish | None = None
    caching: CachingWish = _NO_CACHING_WISH
    identity: Identity = _ANONYMOUS
    options: tuple[Option, ...] = ()
    # The original bytes of a chat request, by field. The chat wire sends them instead of encoding
    # the same fields again; all other code reads the typed fields.
    written: Mapping[str, msgspec.Raw] | None = None

    # Every part of every turn, and every media part, including those inside tool results. They are
    # computed from the turns.
    parts: tuple[Part, ...] = ()
    media: tuple[Media, ...] = ()

    def __post_init__(self) -> None:
        parts = tuple(chain.from_iterable(map(_parts_of_turn, self.turns)))
        media: tuple[Media, ...] = ()
        if not _MEDIA_PLACES.isdisjoint(map(type, parts)):
            contents = [part.content if isinstance(part, ToolResult) else (part,) for part in parts]
            found = chain.from_iterable(contents)
            media = tuple(part for part in found if isinstance(part, Media))
        # Sets both every time, because a copy with other turns still has the values of the
        # original.
        _set(self, "parts", parts)
        _set(self, "media", media)

    def cache_marks(self) -> list[FreeObject]:
        """Returns every `cache_control` of the client, in parts and in tools."""
        places: list[FreeObject | None] = []
        for turn in self.turns:
            for part in turn.parts:
                contents = part.content if isinstance(part, ToolResult) else ()
                places += [content.extra for content in (part, *contents)]
        for tool in self.tools:
            if isinstance(tool, FunctionTool):
                places += [tool.extra, tool.tool_extra]
            else:
                places.append(tool.written)
        marks = (place.get("cache_control") for place in places if place)
        return [mark for mark in marks if isinstance(mark, dict)]

    @property
    def provider_tools(self) -> list[tuple[str, OtherTool]]:
        """Returns the tools of a chat request that the model's provider runs, each with its
        name."""
        return [
            (name, tool)
            for tool in self.tools
            if isinstance(tool, OtherTool) and (name := tool.provider_name) is not None
        ]

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
        return replace(self, turns=turns)
