"""Decodes Gemini answers; whole ones look like a stream's record. Tolerant: the unknown is
skipped."""

from functools import partial

import msgspec

from tollkeeper.core.inference import Finish
from tollkeeper.providers.answer_json import ABSENT, decode, decode_whole, decoded_or

# An answer with tool calls ends with STOP too. Other reasons are passed on unchanged.
FINISHES = {
    "STOP": Finish.STOP,
    "MAX_TOKENS": Finish.LENGTH,
    **dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
            *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR"),
        ),
        Finish.CONTENT_FILTER,
    ),
}
UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"
# The model wrote an invalid answer.
FAILURES = frozenset(
    {
        *("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
        *("MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE"),
    }
)
# For error records without a number.
STATUSES = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNKNOWN": 500,
    "DATA_LOSS": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


class FunctionCall(msgspec.Struct, gc=False):
    id: str | None = None
    name: str | None = None
    args: msgspec.Raw = ABSENT


class InlineData(msgspec.Struct, gc=False, rename="camel"):
    """In base64."""

    mime_type: str | None = None
    data: str | None = None


class Part(msgspec.Struct, gc=False, rename="camel"):
    text: str | None = None
    inline_data: InlineData | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None


class Content(msgspec.Struct, gc=False):
    parts: list[Part] | None = None


class WebPage(msgspec.Struct, gc=False):
    uri: str | None = None
    title: str | None = None


class GroundingChunk(msgspec.Struct, gc=False):
    web: WebPage | None = None


class Segment(msgspec.Struct, gc=False, rename="camel"):
    """Indexes are in UTF-8 bytes."""

    start_index: int | None = None
    end_index: int | None = None


class GroundingSupport(msgspec.Struct, gc=False, rename="camel"):
    segment: Segment | None = None
    grounding_chunk_indices: list[int] | None = None


class Grounding(msgspec.Struct, gc=False, rename="camel"):
    """Search queries, the pages found, and the parts of the answer that cite them."""

    web_search_queries: list[str] | None = None
    grounding_chunks: list[GroundingChunk] | None = None
    grounding_supports: list[GroundingSupport] | None = None


class Candidate(msgspec.Struct, gc=False, rename="camel"):
    index: int | None = None
    content: Content | None = None
    finish_reason: str | None = None
    grounding_metadata: Grounding | None = None


class PromptFeedback(msgspec.Struct, gc=False, rename="camel"):
    block_reason: str | None = None


class Record(msgspec.Struct, gc=False, rename="camel"):
    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class _UsageOnly(msgspec.Struct, gc=False, rename="camel"):
    usage_metadata: msgspec.Raw = ABSENT


_record_decoder = msgspec.json.Decoder(Record)
decode_record = partial(decode, _record_decoder)
decode_answer = partial(decode_whole, _record_decoder)
decode_usage_only = partial(decoded_or, _UsageOnly(), msgspec.json.Decoder(_UsageOnly))
