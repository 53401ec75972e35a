"""A table of the native wires and the behaviour of a scripted server for each of them.

`test_native_wires.py` runs the tests that all native wires have in common over this table.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.providers.anthropic.calls import CLAUDE
from tests.providers.converse.calls import CLAUDE as CONVERSE_CLAUDE
from tests.providers.gemini.calls import GEMINI
from tests.support import upstream_converse as converse
from tests.support import upstream_gemini as gemini
from tests.support import upstream_messages as messages
from tests.support.backend_calls import KEY, make_call
from tests.support.upstream import SSE_TYPE, Verb, stream
from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import BackendFailed, ProviderRejected, RateLimited, TollkeeperError
from tollkeeper.core.inference import Call
from tollkeeper.providers.config import Tokenizer, WireProtocol
from tollkeeper.providers.credentials import CredentialKind

_BEARER = ("authorization", f"Bearer {KEY}")


@dataclass(frozen=True)
class Refusal:
    status: int
    kind: str
    error: type[TollkeeperError] = BackendFailed
    charged: bool = False


@dataclass(frozen=True)
class NativeWire:
    settings: Mapping[str, Any]
    model: Model
    # The paths for a whole answer, a stream and a token count.
    paths: tuple[str, str, str]
    # The name and the value of the header with the key.
    key: tuple[str, str]
    # Answers as a server without faults. `input_tokens` is its result for a token count.
    ordinary: Callable[..., Verb]
    # The field with the result of a token count.
    count_field: str
    records: Callable[[], list[bytes]]
    stream_type: str
    # Returns a refusal with this status and kind. `refusals` are all that the provider documents.
    refuse: Callable[..., Verb]
    refusals: tuple[Refusal, ...]
    # The status and the kind of the refusal if the server is busy.
    busy: tuple[int, str]
    # The first record of a stream, an error record, and a stream that begins with the text "0 1 ".
    begun: Callable[[], bytes]
    failing: Callable[[], bytes]
    said: Callable[..., list[bytes]]

    def call(self, **fields: Any) -> Call:
        return make_call(catalog_model=self.model, **fields)

    def streaming(self, records: Iterable[bytes]) -> Verb:
        return stream(records, content_type=self.stream_type)


_AWS_REFUSALS = (
    Refusal(400, "ValidationException", ProviderRejected),
    Refusal(400, "ServiceQuotaExceededException", RateLimited),
    Refusal(403, "AccessDeniedException"),
    Refusal(404, "ResourceNotFoundException"),
    Refusal(408, "ModelTimeoutException", charged=True),
    Refusal(424, "ModelErrorException", charged=True),
    Refusal(429, "ThrottlingException", RateLimited),
    Refusal(429, "ModelNotReadyException", RateLimited),
    Refusal(500, "InternalServerException"),
    Refusal(503, "ServiceUnavailableException"),
)

NATIVE_WIRES = {
    "messages": NativeWire(
        settings={
            "protocol": WireProtocol.MESSAGES,
            "credential": CredentialKind.X_API_KEY,
            "tokenizer": Tokenizer.PROTOCOL,
        },
        model=CLAUDE,
        paths=("/v1/messages", "/v1/messages", "/v1/messages/count_tokens"),
        key=("x-api-key", KEY),
        ordinary=messages.message,
        count_field="input_tokens",
        records=messages.message_records,
        stream_type=SSE_TYPE,
        refuse=messages.refuse_message,
        refusals=(
            Refusal(400, "invalid_request_error", ProviderRejected),
            Refusal(401, "authentication_error"),
            Refusal(402, "billing_error"),
            Refusal(403, "permission_error"),
            Refusal(404, "not_found_error"),
            Refusal(413, "request_too_large"),
            Refusal(429, "rate_limit_error", RateLimited),
            Refusal(500, "api_error"),
            Refusal(504, "timeout_error", charged=True),
            Refusal(529, "overloaded_error"),
        ),
        busy=(529, "overloaded_error"),
        begun=messages.begin,
        failing=lambda: messages.error_record("overloaded_error"),
        said=messages.text_then,
    ),
    "gemini": NativeWire(
        settings={
            "protocol": WireProtocol.GEMINI,
            "credential": CredentialKind.X_GOOG_API_KEY,
            "tokenizer": Tokenizer.PROTOCOL,
        },
        model=GEMINI,
        paths=(
            "/v1/models/upstream-model:generateContent",
            "/v1/models/upstream-model:streamGenerateContent?alt=sse",
            "/v1/models/upstream-model:countTokens",
        ),
        key=("x-goog-api-key", KEY),
        ordinary=gemini.generate,
        count_field="totalTokens",
        records=gemini.answer_records,
        stream_type=SSE_TYPE,
        refuse=gemini.refuse_gemini,
        refusals=(
            Refusal(400, "INVALID_ARGUMENT", ProviderRejected),
            Refusal(401, "UNAUTHENTICATED"),
            Refusal(403, "PERMISSION_DENIED"),
            Refusal(404, "NOT_FOUND"),
            Refusal(429, "RESOURCE_EXHAUSTED", RateLimited),
            Refusal(500, "INTERNAL"),
            Refusal(503, "UNAVAILABLE"),
            Refusal(504, "DEADLINE_EXCEEDED", charged=True),
        ),
        busy=(503, "UNAVAILABLE"),
        begun=gemini.piece,
        failing=lambda: gemini.record(gemini.error_body(503, "UNAVAILABLE")),
        said=gemini.text_then,
    ),
    "converse": NativeWire(
        settings={"protocol": WireProtocol.CONVERSE, "tokenizer": Tokenizer.PROTOCOL},
        model=CONVERSE_CLAUDE,
        paths=(
            "/v1/model/upstream-model/converse",
            "/v1/model/upstream-model/converse-stream",
            "/v1/model/upstream-model/count-tokens",
        ),
        key=_BEARER,
        ordinary=converse.converse,
        count_field="inputTokens",
        records=converse.answer_frames,
        stream_type=converse.FRAMES_TYPE,
        refuse=converse.refuse_aws,
        refusals=_AWS_REFUSALS,
        busy=(503, "ServiceUnavailableException"),
        begun=converse.begin,
        failing=lambda: converse.exception("serviceUnavailableException"),
        said=converse.text_then,
    ),
    "bedrock_messages": NativeWire(
        settings={"protocol": WireProtocol.BEDROCK_MESSAGES, "tokenizer": Tokenizer.PROTOCOL},
        model=CLAUDE,
        paths=(
            "/v1/model/upstream-model/invoke",
            "/v1/model/upstream-model/invoke-with-response-stream",
            "/v1/model/upstream-model/count-tokens",
        ),
        key=_BEARER,
        ordinary=converse.invoke,
        count_field="inputTokens",
        records=lambda: converse.chunk_frames(messages.message_records()),
        stream_type=converse.FRAMES_TYPE,
        refuse=converse.refuse_aws,
        refusals=_AWS_REFUSALS,
        busy=(503, "ServiceUnavailableException"),
        begun=lambda: converse.chunk_frame(messages.begin()),
        failing=lambda: converse.exception("serviceUnavailableException"),
        said=lambda *frames: [*converse.chunk_frames(messages.text_then()), *frames],
    ),
}

EACH_WIRE = pytest.mark.parametrize("wire", NATIVE_WIRES.values(), ids=list(NATIVE_WIRES))
EACH_REFUSAL = pytest.mark.parametrize(
    ("wire", "refusal"),
    [
        pytest.param(wire, refusal, id=f"{name}-{refusal.status}-{refusal.kind}")
        for name, wire in NATIVE_WIRES.items()
        for refusal in wire.refusals
    ],
)
