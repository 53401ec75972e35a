"""A Responses result, with all fields that OpenAI publishes: strict clients require them."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from tollkeeper.faces.wire.responses import Metadata
from tollkeeper.http.wire_base import FreeObject, ResponseObject

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class FlatUrlCitation(ResponseObject, tag="url_citation", tag_field="type"):
    """A citation as in chat, but without the nested `url_citation` object."""

    url: str
    title: str
    start_index: int
    end_index: int


class TopLogprob(ResponseObject):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(ResponseObject):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class OutputText(ResponseObject, tag="output_text", tag_field="type"):
    text: str
    annotations: list[FlatUrlCitation]
    logprobs: list[TokenLogprob]


class OutputRefusal(ResponseObject, tag="refusal", tag_field="type"):
    refusal: str


class ReasoningText(ResponseObject, tag="reasoning_text", tag_field="type"):
    text: str


class OutputMessage(ResponseObject, tag="message", tag_field="type"):
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText | OutputRefusal]


class OutputFunctionCall(ResponseObject, tag="function_call", tag_field="type"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    # Only for a function of a namespace tool.
    namespace: str | UnsetType = UNSET


class OutputReasoning(ResponseObject, tag="reasoning", tag_field="type"):
    id: str
    status: ItemStatus
    summary: list[FreeObject]
    content: list[ReasoningText]
    # Omitted unless the client asked for it, because some clients don't accept null.
    encrypted_content: str | UnsetType = UNSET


class OutputImage(ResponseObject, tag="image_generation_call", tag_field="type"):
    id: str
    status: ItemStatus
    # In base64.
    result: str | None
    output_format: str | None


OutputItem = OutputMessage | OutputFunctionCall | OutputReasoning | OutputImage
OutputPart = OutputText | OutputRefusal | ReasoningText


class ResponseError(ResponseObject):
    code: str
    message: str
    type: str
    param: str | None


class IncompleteDetails(ResponseObject):
    reason: Literal["max_output_tokens", "content_filter"]


class InputTokensDetails(ResponseObject):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(ResponseObject):
    reasoning_tokens: int


class ResponseUsage(ResponseObject):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ReasoningShown(ResponseObject):
    effort: str | None
    summary: str | None


class Response(ResponseObject):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int
    max_tool_calls: int | None
    metadata: Metadata
    parallel_tool_calls: bool
    reasoning: ReasoningShown
    text: FreeObject
    tool_choice: Any
    tools: list[FreeObject]
    truncation: Literal["auto", "disabled"]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    service_tier: str
    safety_identifier: str | None
    user: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    background: bool
    store: bool
    previous_response_id: str | None
    conversation: str | None
    prompt: str | None
