"""Defines a table of the providers with native protocols. It contains, for the same conversations, the
answers of each provider, the requests that it must get, and the costs."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support import upstream_converse as converse
from tests.support import upstream_gemini as gemini
from tests.support import upstream_messages as messages
from tests.support.upstream import SSE_TYPE, Peer, Verb, stream
from tollkeeper.providers.gemini.thinking import UNSIGNED

PRICES = {
    "prompt": "0.000003",
    "completion": "0.000015",
    "input_cache_read": "0.0000003",
    "input_cache_write": "0.00000375",
    "input_cache_write_1h": "0.000006",
    "web_search": "0.01",
}
# The same prices in picousd, for one token or one search.
INPUT, OUTPUT, READ, WRITE, WRITE_1H = 3_000_000, 15_000_000, 300_000, 3_750_000, 6_000_000
SEARCH = 10_000_000_000
Blocks = list[dict[str, Any]]


@dataclass(frozen=True)
class Provider:
    protocol: str
    credential: str
    # The end of the path of token counts, and the number that a count returns.
    count_path: str
    input_tokens: int
    tokens_per_image: int
    ordinary: Callable[..., Verb]
    # The usage report of each answer, its cost in picousd, and the token counts that the client
    # gets: input, output, cached.
    usage: dict[str, Any]
    cost: int
    caller_usage: tuple[int, int, int]
    text: Callable[[str], dict[str, Any]]
    # Two tool calls (Paris and Rome), and their form in the request that follows a chat answer.
    calls: Blocks
    calls_sent: Blocks
    # The fields with which the provider marks the end of an answer with tool calls.
    calling: dict[str, Any]
    results: Callable[..., Blocks]
    # Three answers with reasoning, and their form in later requests. The first one calls a tool.
    thoughts: tuple[Blocks, ...]
    thoughts_sent: tuple[Blocks, ...]
    # The fields that ask for reasoning in each of these requests.
    asks_to_reason: dict[str, Any]
    # The provider's names for the list of messages, for their content, and for the model's role.
    names: tuple[str, str, str]
    schema: Callable[[Any], Any]
    refuse: Callable[[], Verb]
    # A stream that fails after the text "0 1 ". `told_input` is the number of input tokens that it
    # reports before it fails.
    broken: Callable[[], list[bytes]]
    stream_type: str = SSE_TYPE
    told_input: int | None = None
    # Requests that the provider cannot serve: their fields, and the param that the error names.
    refused: tuple[tuple[dict[str, Any], str], ...] = ()
    model: dict[str, Any] = field(default_factory=dict)

    def is_count(self, path: str) -> bool:
        return path.endswith(self.count_path)

    def counting(self, *script: Verb) -> Verb:
        """Answers every token count, and answers calls with the elements of `script` in order."""
        answers = iter(script)

        async def verb(peer: Peer) -> None:
            if self.is_count(peer.request.path):
                await self.ordinary(input_tokens=self.input_tokens)(peer)
            else:
                await next(answers)(peer)

        return verb

    def answer(self, *blocks: dict[str, Any], calling: bool = False) -> Verb:
        more = self.calling if calling else {}
        return self.ordinary(*blocks, usage=self.usage, **more)

    def breaking(self) -> Verb:
        return stream(self.broken(), content_type=self.stream_type)

    def turn(self, role: str, blocks: Blocks) -> dict[str, Any]:
        return {"role": role, self.names[1]: blocks}


def _claude_thoughts(
    thinking: Callable[[str, str], dict[str, Any]],
    redacted: dict[str, Any],
    call: dict[str, Any],
    text: Callable[[str], dict[str, Any]],
) -> tuple[Blocks, ...]:
    thoughts = [thinking(f"Thought {number}.", f"c2lnbmF0dXJl{number}") for number in range(3)]
    return (
        [thoughts[0], redacted, call],
        [thoughts[1], text("It is wet.")],
        [thoughts[2], text("Yes.")],
    )


_MESSAGES_CALLS = [
    messages.tool_block("c1", "weather", place="Paris"),
    messages.tool_block("c2", "weather", place="Rome"),
]
_MESSAGES_THOUGHTS = _claude_thoughts(
    messages.thinking_block,
    {"type": "redacted_thinking", "data": "aGlkZGVu"},
    _MESSAGES_CALLS[0],
    messages.text_block,
)
_MESSAGES_USAGE = {
    "input_tokens": 100,
    "cache_read_input_tokens": 30,
    "cache_creation_input_tokens": 7,
    "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 2},
    "output_tokens": 20,
}
_CLAUDE_COST = 100 * INPUT + 30 * READ + 5 * WRITE + 2 * WRITE_1H + 20 * OUTPUT
_CLAUDE_REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"seed": 1}, "seed"),
    ({"logprobs": True}, "logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"cache_salt": "s"}, "cache_salt"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
)


def _messages_results(*results: tuple[str, str]) -> Blocks:
    return [
        {"type": "tool_result", "tool_use_id": call_id, "content": text}
        for call_id, text in results
    ]


def _messages_schema(body: Any) -> Any:
    return body["output_config"]["format"]["schema"]


_GEMINI_CALLS = [
    gemini.call_part("c1", "weather", "c2ln", place="Paris"),
    gemini.call_part("c2", "weather", place="Rome"),
]
_GEMINI_THOUGHTS = (
    [
        gemini.thought_part("Thought 0."),
        gemini.call_part("c1", "weather", "c2lnbmF0dXJl0", place="Paris"),
    ],
    [
        gemini.thought_part("Thought 1."),
        gemini.text_part("It is wet."),
        gemini.text_part("", "c2lnbmF0dXJl1"),
    ],
    [gemini.thought_part("Thought 2."), gemini.text_part("Yes.")],
)


def _gemini_results(*results: tuple[str, str]) -> Blocks:
    return [
        {"functionResponse": {"id": call_id, "name": "weather", "response": {"output": text}}}
        for call_id, text in results
    ]


_CONVERSE_CALLS = [
    converse.use_block("c1", "weather", place="Paris"),
    converse.use_block("c2", "weather", place="Rome"),
]
_CONVERSE_THOUGHTS = _claude_thoughts(
    converse.reasoning_block,
    converse.redacted_block("aGlkZGVu"),
    _CONVERSE_CALLS[0],
    converse.text_block,
)


def _converse_results(*results: tuple[str, str]) -> Blocks:
    return [
        {"toolResult": {"toolUseId": call_id, "content": [{"text": text}]}}
        for call_id, text in results
    ]


PROVIDERS = {
    "anthropic": Provider(
        protocol="messages",
        credential="x-api-key",
        count_path="/count_tokens",
        input_tokens=120,
        tokens_per_image=4784,
        ordinary=messages.message,
        usage=_MESSAGES_USAGE,
        cost=_CLAUDE_COST,
        caller_usage=(137, 20, 30),
        text=messages.text_block,
        calls=_MESSAGES_CALLS,
        calls_sent=_MESSAGES_CALLS,
        calling={"stop_reason": "tool_use"},
        results=_messages_results,
        thoughts=_MESSAGES_THOUGHTS,
        thoughts_sent=_MESSAGES_THOUGHTS,
        asks_to_reason={"thinking": {"type": "adaptive"}},
        names=("messages", "content", "assistant"),
        schema=_messages_schema,
        refuse=lambda: messages.refuse_message(529, "overloaded_error"),
        broken=lambda: messages.text_then(messages.error_record("overloaded_error")),
        told_input=12,
        refused=_CLAUDE_REFUSED,
    ),
    "gemini": Provider(
        protocol="gemini",
        credential="x-goog-api-key",
        count_path=":countTokens",
        input_tokens=150,
        tokens_per_image=1120,
        ordinary=gemini.generate,
        usage={
            "promptTokenCount": 130,
            "cachedContentTokenCount": 30,
            "candidatesTokenCount": 20,
            "thoughtsTokenCount": 7,
            "totalTokenCount": 157,
        },
        cost=100 * INPUT + 30 * READ + 27 * OUTPUT,
        caller_usage=(130, 27, 30),
        text=gemini.text_part,
        calls=_GEMINI_CALLS,
        # Chat has no field for signatures, so the gateway sends the documented replacement value.
        calls_sent=[{**_GEMINI_CALLS[0], "thoughtSignature": UNSIGNED}, _GEMINI_CALLS[1]],
        calling={},
        results=_gemini_results,
        thoughts=_GEMINI_THOUGHTS,
        # The gateway does not send back thoughts without a signature.
        thoughts_sent=tuple(blocks[1:] for blocks in _GEMINI_THOUGHTS),
        asks_to_reason={"toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}}},
        names=("contents", "parts", "model"),
        schema=lambda body: body["generationConfig"]["responseJsonSchema"],
        refuse=lambda: gemini.refuse_gemini(503, "UNAVAILABLE"),
        broken=lambda: gemini.text_then(gemini.record(gemini.error_body(503, "UNAVAILABLE"))),
        told_input=12,
        refused=(
            ({"logprobs": True}, "logprobs"),
            ({"logit_bias": {"1": 1}}, "logit_bias"),
            ({"cache_salt": "s"}, "cache_salt"),
            ({"service_tier": "priority"}, "service_tier"),
            ({"reasoning_effort": "none"}, "reasoning_effort"),
        ),
    ),
    "bedrock": Provider(
        protocol="converse",
        credential="bearer",
        count_path="/count-tokens",
        input_tokens=120,
        tokens_per_image=4784,
        ordinary=converse.converse,
        usage={
            "inputTokens": 100,
            "cacheReadInputTokens": 30,
            "cacheWriteInputTokens": 7,
            "cacheDetails": [{"ttl": "1h", "inputTokens": 2}, {"ttl": "5m", "inputTokens": 5}],
            "outputTokens": 20,
            "totalTokens": 157,
        },
        cost=_CLAUDE_COST,
        caller_usage=(137, 20, 30),
        text=converse.text_block,
        calls=_CONVERSE_CALLS,
        calls_sent=_CONVERSE_CALLS,
        calling={"stop_reason": "tool_use"},
        results=_converse_results,
        thoughts=_CONVERSE_THOUGHTS,
        thoughts_sent=_CONVERSE_THOUGHTS,
        asks_to_reason={
            "additionalModelRequestFields": {"thinking": {"type": "adaptive"}},
            "outputConfig": {"effort": "low"},
        },
        names=("messages", "content", "assistant"),
        schema=lambda body: json.loads(
            body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]
        ),
        refuse=lambda: converse.refuse_aws(503, "ServiceUnavailableException"),
        broken=lambda: converse.text_then(converse.exception("modelStreamErrorException")),
        stream_type=converse.FRAMES_TYPE,
        refused=(*_CLAUDE_REFUSED, ({"web_search_options": {}}, "web_search_options")),
    ),
}
# Anthropic's protocol on Amazon Bedrock, whose streams consist of AWS's binary messages.
PROVIDERS["bedrock-claude"] = replace(
    PROVIDERS["anthropic"],
    protocol="bedrock_messages",
    credential="bearer",
    count_path="/count-tokens",
    ordinary=converse.invoke,
    refuse=lambda: converse.refuse_aws(503, "ServiceUnavailableException"),
    broken=lambda: [
        *converse.chunk_frames(messages.text_then()),
        converse.exception("modelStreamErrorException"),
    ],
    stream_type=converse.FRAMES_TYPE,
    refused=(*_CLAUDE_REFUSED, ({"web_search_options": {}}, "web_search_options")),
)
