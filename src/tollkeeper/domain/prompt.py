"""The prompt: what a caller asks of a model, in one typed form for every protocol.

Faces (chat, Responses, Messages) decode their requests into it; wires encode their requests from
it; the estimator, the transcript and the gate read it. Every part type is listed here: a face
refuses what it cannot turn into one of them. `place` and `param` say where the caller's request
has a thing, so that an error can name it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec.structs import replace

# An object of the interface whose properties are free, such as a JSON schema.
FreeObject: TypeAlias = dict[str, Any]


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    # The legacy form of TOOL: its result names the function instead of the call.
    FUNCTION = "function"


class Text(msgspec.Struct, frozen=True, gc=False):
    text: str
    # Properties that the caller added to the part. They travel on, so they count as text.
    extra: FreeObject | None = None


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """What an earlier answer said instead of an answer."""

    text: str
    extra: FreeObject | None = None


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """What an earlier answer thought, as text or sealed by the backend that alone can read it."""

    text: str = ""
    sealed: tuple[str, ...] = ()
    extra: FreeObject | None = None


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call that an earlier answer made. `arguments` is JSON as the model wrote it."""

    id: str | None
    name: str
    arguments: str
    place: str = ""
    legacy: bool = False
    extra: FreeObject | None = None

    def described(self) -> FreeObject:
        """As a model reads it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function, **(self.extra or {})}


class Image(msgspec.Struct, frozen=True, gc=False):
    modality: ClassVar[str] = "image"
    url: str
    detail: str | None = None
    place: str = ""
    extra: FreeObject | None = None


class Audio(msgspec.Struct, frozen=True, gc=False):
    """Either `data` in base64 with its format, or a URL."""

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
    """What a tool returned. `call_id` names the call; the legacy form names the function."""

    content: tuple[Content, ...]
    call_id: str | None
    name: str | None = None


Part: TypeAlias = Content | ToolCall | ToolResult


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One message of the conversation. An assistant's turn has its reasoning, words and calls."""

    role: Role
    parts: tuple[Part, ...]
    # The speaker's name.
    name: str | None = None
    place: str = ""
    # Properties that the role has no use for. They travel on, so they count as text.
    extra: FreeObject | None = None


class FunctionTool(msgspec.Struct, frozen=True, gc=False):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: FreeObject | None = None
    strict: bool | None = None
    place: str = ""
    # Where the request has the parameters.
    schema_place: str = ""
    # Described by the legacy field `functions`.
    legacy: bool = False
    # Further properties of the function, and of the tool beside it.
    extra: FreeObject | None = None
    beside: FreeObject | None = None

    def described(self) -> FreeObject:
        """As a model reads it."""
        optional = {
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }
        given = {name: value for name, value in optional.items() if value is not None}
        return {
            "type": "function",
            "function": {"name": self.name, **given, **(self.extra or {})},
            **(self.beside or {}),
        }


class OtherTool(msgspec.Struct, frozen=True, gc=False):
    """A tool that is no function: only the protocol that it is written in can carry it."""

    written: FreeObject
    place: str
    legacy: bool = False

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
    """A choice that is none of the above: only the protocol that it is written in can carry it."""

    written: FreeObject


class ToolChoice(msgspec.Struct, frozen=True, gc=False):
    choice: ToolMode | NamedFunction | AllowedFunctions | OtherChoice
    param: str


class UserLocation(msgspec.Struct, frozen=True, gc=False):
    """Roughly where the user is, for searches."""

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
    # Options that the chat protocol carries as the caller wrote them, and no other protocol can.
    extra: FreeObject | None = None


class JsonOutput(msgspec.Struct, frozen=True, gc=False):
    """The answer is some JSON object."""

    param: str

    def described(self) -> FreeObject:
        return {"type": "json_object"}


class SchemaOutput(msgspec.Struct, frozen=True, gc=False):
    """The answer is JSON of this schema."""

    name: str
    schema: FreeObject
    param: str
    schema_place: str
    description: str | None = None
    strict: bool | None = None

    def described(self) -> FreeObject:
        optional = {"description": self.description, "strict": self.strict}
        given = {name: value for name, value in optional.items() if value is not None}
        return {
            "type": "json_schema",
            "json_schema": {"name": self.name, "schema": self.schema, **given},
        }


OutputFormat: TypeAlias = JsonOutput | SchemaOutput


class OutputModality(msgspec.Struct, frozen=True, gc=False):
    name: str
    param: str


class Sampling(msgspec.Struct, frozen=True, gc=False):
    """How tokens are drawn. None: the backend's own default."""

    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None

    def given(self) -> dict[str, float | str | list[str] | dict[str, float]]:
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }


_DEFAULT_SAMPLING = Sampling()


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    """The answer comes with log-probabilities, and with those of this many alternatives."""

    param: str
    top: int | None = None


class ReasoningWish(msgspec.Struct, frozen=True, gc=False):
    """How much the model is to think. `params` are the fields by which the caller says so."""

    params: tuple[str, ...]
    effort: str | None = None


class CachingWish(msgspec.Struct, frozen=True, gc=False):
    """Hints for the backend's prefix cache: isolated values, never the caller's own text."""

    key: str | None = None
    salt: str | None = None


_NO_CACHING_WISH = CachingWish()


class Identity(msgspec.Struct, frozen=True, gc=False):
    """What the caller says of its own user, for the backend's abuse checks and records."""

    user: str | None = None
    safety_identifier: str | None = None
    metadata: FreeObject | None = None


_ANONYMOUS = Identity()


class Option(msgspec.Struct, frozen=True, gc=False):
    """An option without a published meaning. The model's `options` say where its backend has it;
    a model that does not say so does not have the option. `value` is any JSON value."""

    name: str
    value: object
    param: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    # Tools that the provider runs itself; they are counted, and no template renders them.
    server_tools: tuple[FreeObject, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    web_search: WebSearch | None = None
    output_format: OutputFormat | None = None
    output_modalities: tuple[OutputModality, ...] = ()
    # How the answer is to be spoken.
    speech: FreeObject | None = None
    sampling: Sampling = _DEFAULT_SAMPLING
    logprobs: Logprobs | None = None
    reasoning: ReasoningWish | None = None
    caching: CachingWish = _NO_CACHING_WISH
    identity: Identity = _ANONYMOUS
    options: tuple[Option, ...] = ()
    # A chat request's own bytes by field. The chat wire passes them on instead of writing the
    # same fields anew; everybody else reads the typed form.
    written: Mapping[str, msgspec.Raw] | None = None

    def media(self) -> list[Media]:
        """Every media part, those inside of tool results too."""
        found: list[Media] = []
        for turn in self.turns:
            for part in turn.parts:
                # Nearly every part of every conversation: worth a short way.
                if type(part) is Text:
                    continue
                inner = part.content if isinstance(part, ToolResult) else (part,)
                found += [content for content in inner if isinstance(content, Media)]
        return found

    @property
    def has_legacy_functions_only(self) -> bool:
        return bool(self.tools) and all(tool.legacy for tool in self.tools)

    def with_seed(self, seed: int) -> "Prompt":
        written = self.written
        if written is not None:
            written = {**written, "seed": msgspec.Raw(str(seed).encode())}
        return replace(self, sampling=replace(self.sampling, seed=seed), written=written)

    def with_turns(self, turns: tuple[Turn, ...]) -> "Prompt":
        assert self.written is None, "the caller's bytes have all turns"
        return replace(self, turns=turns)
