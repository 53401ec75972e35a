"""Defines the prompt: the content of a request, in one typed form for every protocol.

A face (a protocol towards clients: chat, Responses, Messages) decodes its requests into prompts. A
wire (a protocol towards model servers) encodes prompts into its requests. The token estimator, the
judge's transcript and the checks of the model's features read prompts. This file lists every type
of part, and a face rejects content that it cannot convert to one of these types. `place` and
`param` name the position of a value in the client's request, for error messages.
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
    # The legacy form of TOOL: the message has the name of the function instead of the id of the
    # call.
    FUNCTION = "function"


class Text(msgspec.Struct, frozen=True, gc=False):
    text: str
    # Additional properties in the client's JSON of the part. The backend receives them, so token
    # estimates and policies include them as text. The field `extra` of other parts has the same
    # meaning.
    extra: FreeObject | None = None
    # Empty if the part is not an element of an array in the request.
    place: str = ""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Represents the model's refusal in an earlier answer."""

    text: str
    extra: FreeObject | None = None
    place: str = ""


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """Represents the reasoning in an earlier answer: text, or `sealed` values, which are encrypted
    for the backend that wrote the answer."""

    text: str = ""
    sealed: tuple[str, ...] = ()
    extra: FreeObject | None = None
    place: str = ""


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """Represents a tool call in an earlier answer. `arguments` is JSON text as the model wrote
    it."""

    id: str | None
    name: str
    arguments: str
    place: str = ""
    # Whether the client used the legacy field `function_call`.
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


# The types of blocks of the Messages protocol in which the provider calls its web search and returns
# the results.
SERVER_TOOL_USE, SEARCH_RESULTS = "server_tool_use", "web_search_tool_result"


class ToolResult(msgspec.Struct, frozen=True, gc=False):
    """Contains a tool's result. `call_id` is the id of the tool call. The legacy form has the
    function's `name` instead."""

    content: tuple[Content, ...]
    call_id: str | None
    name: str | None = None
    # Whether the tool failed; the content then describes the failure.
    is_error: bool = False
    extra: FreeObject | None = None


class SearchBlock(msgspec.Struct, frozen=True, gc=False):
    """Represents a web search in an earlier answer, or its results, as the model's provider wrote
    them. Only the protocol of this answer (Messages) can transmit such a block."""

    written: FreeObject
    place: str = ""
    extra: FreeObject | None = None

    @property
    def query(self) -> FreeObject | None:
        """Returns what the model searches for; None if the block contains results."""
        return self.written["input"] if self.written["type"] == SERVER_TOOL_USE else None


Part: TypeAlias = Content | ToolCall | ToolResult | SearchBlock
_ONLY_TEXT = frozenset({Text})
_TYPES_WITH_MEDIA = frozenset({Image, Audio, Video, File, ToolResult})
_parts_of_turn = attrgetter("parts")
_text, _name, _extra = attrgetter("text"), attrgetter("name"), attrgetter("extra")
_set = msgspec.structs.force_setattr


class Turn(msgspec.Struct, frozen=True, gc=False):
    """Represents one message of the conversation. An assistant's turn contains the reasoning, the
    text and the tool calls of one earlier answer."""

    role: Role
    parts: tuple[Part, ...]
    # The name of the message's author.
    name: str | None = None
    place: str = ""
    # Properties of the message that its role does not define. The backend receives them, so they
    # count as text.
    extra: FreeObject | None = None


class FunctionTool(msgspec.Struct, frozen=True, gc=False):
    """Represents a function that the model may call."""

    name: str
    description: str | None = None
    parameters: FreeObject | None = None
    strict: bool | None = None
    place: str = ""
    # The position of `parameters` in the client's request.
    schema_place: str = ""
    # Whether the client used the legacy field `functions`.
    legacy: bool = False
    # Additional properties of the function object, and of the tool object that contains the
    # function.
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
    """Represents a tool that is not a function. Only a wire with the protocol of the client's
    request can send such a tool."""

    written: FreeObject
    place: str
    legacy: bool = False

    @property
    def provider_name(self) -> str | None:
        """Returns the tool's name if the model's provider runs the tool, such as a web search.
        Returns None if the client runs the tool, like a function or a custom tool."""
        kind, function = self.written.get("type"), self.written.get("function")
        if self.legacy or kind in _CLIENT_TOOL_TYPES:
            return None
        if kind is None:
            # For some providers, the tool's name is its only property: `{"googleSearch": {}}`.
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
    """Requires that the model calls this function."""

    name: str


def decode_arguments(arguments: str) -> dict[str, msgspec.Raw] | None:
    """Decodes the arguments of a tool call, which are a JSON text. Only the top level is decoded: the
    values stay JSON. Returns None if the text is not a JSON object or is nested too deeply."""
    try:
        return _json_object.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


_json_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class AllowedFunctions(msgspec.Struct, frozen=True, gc=False):
    """Allows the model to call only these functions."""

    names: tuple[str, ...]
    mode: ToolMode


class OtherChoice(msgspec.Struct, frozen=True, gc=False):
    """Represents any other `tool_choice`. Only a wire with the protocol of the client's request
    can send such a choice."""

    written: FreeObject


class ToolChoice(msgspec.Struct, frozen=True, gc=False):
    """Tells whether the model must call tools, and which ones."""

    choice: ToolMode | NamedFunction | AllowedFunctions | OtherChoice
    param: str
    # The JSON objects in a chat client's `tool_choice`. A chat backend receives them unchanged, so
    # they count as text.
    written: tuple[FreeObject, ...] = ()
    # Whether a wire whose protocol cannot force a web search may send the search without the choice.
    may_be_dropped: bool = False


class UserLocation(msgspec.Struct, frozen=True, gc=False):
    """Contains the user's approximate location, for web searches."""

    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None

    def set_fields(self) -> dict[str, str]:
        """Returns the fields that are set."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}


class WebSearch(msgspec.Struct, frozen=True, gc=False):
    """Allows the model to search the web."""

    param: str
    context_size: str | None = None
    location: UserLocation | None = None
    # Additional search options in a chat request. Only the chat protocol can transmit them.
    extra: FreeObject | None = None
    # The maximum number of searches for one answer. Only the Messages protocol can transmit it.
    uses_max: int | None = None


class JsonOutput(msgspec.Struct, frozen=True, gc=False):
    """Requires a JSON object of any shape as the answer."""

    param: str

    def described(self) -> FreeObject:
        return {"type": "json_object"}


class SchemaOutput(msgspec.Struct, frozen=True, gc=False):
    """Requires JSON that follows this schema as the answer."""

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
    """Requests a kind of content in the answer, such as `text` or `image`."""

    name: str
    param: str


class Sampling(msgspec.Struct, frozen=True, gc=False):
    """Controls how the backend samples tokens. For a field that is None, the backend uses its own
    default."""

    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None

    def set_fields(self) -> dict[str, float | str | list[str] | dict[str, float]]:
        """Returns the fields that are set."""
        if self == DEFAULT_SAMPLING:
            return {}
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }


DEFAULT_SAMPLING = Sampling()


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    """Requests log-probabilities in the answer."""

    param: str
    # The number of alternative tokens to list for each token of the answer.
    top: int | None = None


class ReasoningWish(msgspec.Struct, frozen=True, gc=False):
    """Tells how much the model should reason. `params` are the request fields that ask for
    reasoning."""

    params: tuple[str, ...]
    effort: str | None = None
    # Whether `effort` asks for reasoning even without another request field. False for the Messages
    # protocol.
    asks_by_effort: bool = True


class CachingWish(msgspec.Struct, frozen=True, gc=False):
    """Contains the key and the salt for the backend's prefix cache. Both are hashes that differ
    from project to project, so the backend never sees the client's own values."""

    key: str | None = None
    salt: str | None = None
    # Whether the client requested the salt. Otherwise the gateway added it, for backends that can
    # use a salt.
    salt_is_asked: bool = False


_NO_CACHING_WISH = CachingWish()


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Identifies the end user on whose behalf the client sends the request, for the backend's abuse
    checks and records."""

    user: str | None = None
    safety_identifier: str | None = None
    metadata: FreeObject | None = None

    @property
    def short_user(self) -> str | None:
        """Returns the user in at most 64 characters, OpenAI's maximum. A longer name is replaced by
        its SHA-256 digest."""
        user = self.user
        if user is None or len(user) <= _USER_LENGTH_MAX:
            return user
        return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()


_USER_LENGTH_MAX = 64
_ANONYMOUS = Identity()


class Option(msgspec.Struct, frozen=True, gc=False):
    """Represents a request field that not every backend supports. The model's `options` map the
    option's name to a field of the backend's request. A model without an entry for the name does
    not support the option. `value` is a JSON value."""

    name: str
    value: object
    param: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Contains the conversation, the tools and all other content of a request."""

    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    # The tools of a Messages request that the model's provider runs, unchanged. They are not in
    # `tools`. They count as text, but a chat template does not render them.
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
    # Whether the client can read the blocks of the provider's web searches (`SearchBlock`).
    reads_search_blocks: bool = False
    # The original bytes of a chat request, by field. The chat wire sends these bytes instead of
    # encoding the typed fields; all other code reads the typed fields.
    written: Mapping[str, msgspec.Raw] | None = None

    # The texts of all turns, if the turns consist only of one text each: no other parts, no names and
    # no additional properties. Otherwise None. Computed from the turns, unless the creator of the
    # prompt knows that the turns consist only of one text each. Code that replaces the turns must
    # set it to None, so that it is computed again.
    texts: tuple[str, ...] | None = None
    # Every media part of the turns, including media inside tool results. Computed from the turns.
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
        """Returns every `cache_control` object that the client wrote in parts and in tools."""
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
        """Returns those tools in `tools` that the model's provider runs, each with its name."""
        return [
            (name, tool)
            for tool in self.tools
            if isinstance(tool, OtherTool) and (name := tool.provider_name) is not None
        ]

    @property
    def allowed_functions(self) -> list[FunctionTool]:
        """Returns the functions that the client allows the model to call."""
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
        """Returns the prompt with another sampling seed."""
        written = self.written
        if written is not None:
            written = {**written, "seed": msgspec.Raw(str(seed).encode())}
        return replace(self, sampling=replace(self.sampling, seed=seed), written=written)

    def with_turns(self, turns: tuple[Turn, ...]) -> "Prompt":
        assert self.written is None, "the original bytes would still contain the old turns"
        return replace(self, turns=turns, texts=None)
