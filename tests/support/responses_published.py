"""Defines the published format of a Responses result and of its events: the required fields, their
types, and which of them may be null.

The format contains everything that Open Responses or the OpenAI SDKs require. A field with a default
may be missing, and further fields are allowed. Nothing is shared with the gateway's own wire types.
"""

from typing import Any, Literal

import msgspec

Status = Literal["in_progress", "completed", "incomplete"]


class UrlCitation(msgspec.Struct, tag="url_citation", tag_field="type"):
    url: str
    title: str
    start_index: int
    end_index: int


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class OutputText(msgspec.Struct, tag="output_text", tag_field="type"):
    text: str
    annotations: list[UrlCitation]
    logprobs: list[Logprob]


class Refusal(msgspec.Struct, tag="refusal", tag_field="type"):
    refusal: str


class ReasoningText(msgspec.Struct, tag="reasoning_text", tag_field="type"):
    text: str


class SummaryText(msgspec.Struct, tag="summary_text", tag_field="type"):
    text: str


class Message(msgspec.Struct, tag="message", tag_field="type"):
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText | Refusal]


class FunctionCall(msgspec.Struct, tag="function_call", tag_field="type"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class Reasoning(msgspec.Struct, tag="reasoning", tag_field="type"):
    id: str
    summary: list[SummaryText]
    content: list[ReasoningText] | msgspec.UnsetType = msgspec.UNSET
    # This must not be null: a client that stores items would send the null back.
    encrypted_content: str | msgspec.UnsetType = msgspec.UNSET
    status: Status | msgspec.UnsetType = msgspec.UNSET


Item = Message | FunctionCall | Reasoning
Part = OutputText | Refusal | ReasoningText


class Failure(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ReasoningWish(msgspec.Struct):
    effort: str | None
    summary: str | None


class TextFormat(msgspec.Struct, tag="text", tag_field="type"):
    pass


class JsonFormat(msgspec.Struct, tag="json_object", tag_field="type"):
    pass


class SchemaFormat(msgspec.Struct, tag="json_schema", tag_field="type"):
    name: str
    description: str | None
    schema: dict[str, Any] | None
    strict: bool


class Text(msgspec.Struct):
    format: TextFormat | JsonFormat | SchemaFormat
    verbosity: Literal["low", "medium", "high"] | msgspec.UnsetType = msgspec.UNSET


class FunctionTool(msgspec.Struct, tag="function", tag_field="type"):
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class Namespace(msgspec.Struct, tag="namespace", tag_field="type"):
    name: str
    description: str
    tools: list[FunctionTool]


class WebSearch(msgspec.Struct, tag="web_search", tag_field="type"):
    pass


class WebSearchPreview(msgspec.Struct, tag="web_search_preview", tag_field="type"):
    pass


class DatedWebSearch(msgspec.Struct, tag="web_search_2025_08_26", tag_field="type"):
    pass


class DatedWebSearchPreview(msgspec.Struct, tag="web_search_preview_2025_03_11", tag_field="type"):
    pass


Search = WebSearch | WebSearchPreview | DatedWebSearch | DatedWebSearchPreview


class ChosenFunction(msgspec.Struct, tag="function", tag_field="type"):
    name: str


class ChosenNamespace(msgspec.Struct, tag="namespace", tag_field="type"):
    name: str


class AllowedTools(msgspec.Struct, tag="allowed_tools", tag_field="type"):
    mode: Literal["auto", "required"]
    tools: list[ChosenFunction | ChosenNamespace | Search]


class Response(msgspec.Struct):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    incomplete_details: IncompleteDetails | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[Item]
    error: Failure | None
    tools: list[FunctionTool | Namespace | Search]
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | AllowedTools | Search
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: Text
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: ReasoningWish | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class Event(msgspec.Struct, tag_field="type"):
    sequence_number: int


class Told(Event):
    response: Response


class Created(Told, tag="response.created"):
    pass


class InProgress(Told, tag="response.in_progress"):
    pass


class Completed(Told, tag="response.completed"):
    pass


class Incomplete(Told, tag="response.incomplete"):
    pass


class Failed(Told, tag="response.failed"):
    pass


class OfItem(Event):
    output_index: int
    item: Item


class ItemAdded(OfItem, tag="response.output_item.added"):
    pass


class ItemDone(OfItem, tag="response.output_item.done"):
    pass


class OfContent(Event):
    item_id: str
    output_index: int
    content_index: int


class PartAdded(OfContent, tag="response.content_part.added"):
    part: Part


class PartDone(OfContent, tag="response.content_part.done"):
    part: Part


class TextDelta(OfContent, tag="response.output_text.delta"):
    delta: str
    logprobs: list[Logprob]


class TextDone(OfContent, tag="response.output_text.done"):
    text: str
    logprobs: list[Logprob]


class AnnotationAdded(OfContent, tag="response.output_text.annotation.added"):
    annotation_index: int
    annotation: UrlCitation


class RefusalDelta(OfContent, tag="response.refusal.delta"):
    delta: str


class RefusalDone(OfContent, tag="response.refusal.done"):
    refusal: str


class ReasoningDelta(OfContent, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(OfContent, tag="response.reasoning_text.done"):
    text: str


class OfArguments(Event):
    item_id: str
    output_index: int


class ArgumentsDelta(OfArguments, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(OfArguments, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


AnyEvent = (
    Created
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | AnnotationAdded
    | RefusalDelta
    | RefusalDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)


def check_response(found: object) -> Response:
    """Raises msgspec.ValidationError, which names the place, if a result does not have this format."""
    return msgspec.convert(found, Response)


def check_event(found: object) -> Event:
    event: Event = msgspec.convert(found, AnyEvent)
    return event
