"""Tests the Messages protocol at Amazon Bedrock: differences in requests, and frames without valid events."""

import base64
import json
from typing import Any

import msgspec
import pytest

from tests.providers.anthropic.calls import behaving, claude_call, sent
from tests.support.tables import each
from tests.support.upstream_converse import chunk_frame, event, exception
from tests.support.upstream_messages import begin, end, record
from tollkeeper.core.errors import BackendFailed, OptionUnsupported, RateLimited
from tollkeeper.core.inference import Delta
from tollkeeper.core.messages_behavior import PromptCaching
from tollkeeper.providers.anthropic.answer import BedrockMessagesAnswer
from tollkeeper.providers.anthropic.wire import Endpoint, MessagesWire
from tollkeeper.providers.bedrock import count_tokens_path
from tollkeeper.providers.transport.aws_event_stream import AwsEventStreamParser


def _sent(**fields: Any) -> Any:
    return sent(claude_call(**fields), stream=True, endpoint=Endpoint.BEDROCK)


def test_model_version_and_stream_are_elsewhere() -> None:
    assert _sent(user="u") == {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 1024,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    }


def test_the_whole_prompt_is_marked_at_its_last_block() -> None:
    body = _sent(model=behaving(caching=PromptCaching.ONE_HOUR))
    assert "cache_control" not in body
    assert body["messages"][-1]["content"][-1] == {
        "type": "text",
        "text": "Hi",
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
    }


def test_images_go_by_their_content() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
    with pytest.raises(OptionUnsupported):
        _sent(messages=[{"role": "user", "content": [image]}])


def test_a_whole_request_is_counted() -> None:
    wire = MessagesWire(Endpoint.BEDROCK)
    counted = json.loads(wire.encode_count(claude_call()))["input"]["invokeModel"]
    request = json.loads(base64.b64decode(counted["body"]))
    assert request["anthropic_version"] == "bedrock-2023-05-31"
    assert request["max_tokens"] == 1024


def test_tools_that_the_provider_runs_are_not_counted() -> None:
    """Without these tools, the count would be too low, so the gateway has to estimate."""
    call = claude_call()
    prompt = msgspec.structs.replace(call.prompt, server_tools=({"type": "web_search_20250305"},))
    with pytest.raises(OptionUnsupported):
        MessagesWire(Endpoint.BEDROCK).encode_count(msgspec.structs.replace(call, prompt=prompt))


@each(
    ("name", "path"),
    [
        ("us.anthropic.claude-v1:0", "model/anthropic.claude-v1%3A0/count-tokens"),
        ("global.anthropic.claude-v1:0", "model/anthropic.claude-v1%3A0/count-tokens"),
        ("anthropic.claude-v1:0", "model/anthropic.claude-v1%3A0/count-tokens"),
        ("amazon.nova", "model/amazon.nova/count-tokens"),
    ],
)
def test_the_model_itself_is_counted_and_not_its_profile(name: str, path: str) -> None:
    assert count_tokens_path(name) == path


def _read(*frames: bytes) -> BedrockMessagesAnswer:
    answer = BedrockMessagesAnswer(claude_call())
    answer.read(AwsEventStreamParser(1 << 20).feed(b"".join(frames)))
    return answer


def test_metrics_of_the_provider_at_the_end_are_ignored() -> None:
    ended = [
        begin(),
        *end()[:-1],
        record("message_stop", **{"amazon-bedrock-invocationMetrics": {}}),
    ]
    assert _read(*map(chunk_frame, ended)).done


@each("wrapped", ["!", "aGk=", 1])
def test_a_chunk_that_is_no_event(wrapped: Any) -> None:
    answer = _read(event("chunk", bytes=wrapped))
    assert isinstance(answer.failure, BackendFailed)
    assert answer.failure.charged


def test_an_exception_before_and_after_output() -> None:
    text = record("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
    start = record("content_block_start", index=0, content_block={"type": "text", "text": ""})
    before = _read(chunk_frame(begin()), exception("throttlingException"))
    assert isinstance(before.failure, RateLimited)
    after = _read(*map(chunk_frame, (begin(), start, text)), exception("modelStreamErrorException"))
    assert isinstance(after.failure, BackendFailed)
    assert after.failure.charged


def test_frames_of_other_names_are_ignored() -> None:
    answer = BedrockMessagesAnswer(claude_call())
    frames = [event("novelty"), *map(chunk_frame, [begin(), *end()])]
    events = answer.read(AwsEventStreamParser(1 << 20).feed(b"".join(frames)))
    assert answer.done
    assert [found.finish for found in events if isinstance(found, Delta)] == ["stop"]
