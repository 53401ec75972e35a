"""Targets that read JSON (request bodies, and answers and usage of every wire), cursors or queries."""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import cast
from unittest.mock import patch
from uuid import UUID

import msgspec

from tests.fuzz.invariants import assert_linear
from tests.support.backend_calls import MODEL, make_call
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import InvalidRequest, TollkeeperError
from tollkeeper.core.inference import Event, UsageReport
from tollkeeper.core.prompt import CachingWish, Prompt
from tollkeeper.core.prompt_size import measure_prompt
from tollkeeper.core.reports import CostQuery
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.core.usage import normalised
from tollkeeper.database.database import Database
from tollkeeper.faces import strict_json
from tollkeeper.faces.chat import prompt as chat_prompt
from tollkeeper.faces.messages import prompt as messages_prompt
from tollkeeper.faces.request import decode_query
from tollkeeper.faces.responses import prompt as responses_prompt
from tollkeeper.faces.responses.input import Conversation
from tollkeeper.faces.responses.tools import read_tools
from tollkeeper.faces.wire import organization
from tollkeeper.faces.wire.chat import ChatRequest
from tollkeeper.faces.wire.messages import MessagesRequest, TokenCountRequest
from tollkeeper.faces.wire.responses import ResponsesRequest
from tollkeeper.policies.texts.transcript import transcript
from tollkeeper.providers.answer_json import MalformedAnswer
from tollkeeper.providers.anthropic.wire import Endpoint, MessagesWire
from tollkeeper.providers.chat.wire import ChatWire
from tollkeeper.providers.converse.wire import ConverseWire
from tollkeeper.providers.gemini.wire import Endpoint as GeminiEndpoint
from tollkeeper.providers.gemini.wire import GeminiWire
from tollkeeper.providers.responses.wire import ResponsesWire
from tollkeeper.providers.wire import Wire
from tollkeeper.reports.costs.service import Costs

WIRES: dict[str, Wire] = {
    "chat": ChatWire(),
    "responses": ResponsesWire(),
    "messages": MessagesWire(Endpoint.ANTHROPIC),
    "bedrock_messages": MessagesWire(Endpoint.BEDROCK),
    "gemini": GeminiWire(GeminiEndpoint.GEMINI),
    "converse": ConverseWire(),
}
_ELEMENTS_MAX = 40
_MODEL = replace(MODEL, input_modalities=("text", "image", "file", "audio", "video"))
_CALL = make_call()
_STREAMED_CALL = make_call(streamed=True)


def json_bounds(data: bytes) -> None:
    """Checks that the limits of a body are exact for JSON, and that other data raises only declared errors."""
    try:
        strict_json.check_bounds(data, _ELEMENTS_MAX)
    except InvalidRequest as error:
        refused = error.message
    else:
        refused = ""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(data.decode())
        elements, depth = _measured(value)
        assert bool(refused) == (elements > _ELEMENTS_MAX or depth > strict_json.DEPTH_MAX), refused
    assert_linear(lambda data: _suppressed(strict_json.check_bounds, data, 10**9), data)


def _measured(value: object) -> tuple[int, int]:
    """Returns the number of elements of a value, and its depth."""
    if not isinstance(value, dict | list):
        return 0, 0
    inner = [_measured(one) for one in (value.values() if isinstance(value, dict) else value)]
    elements = max(len(inner), 1) + sum(found[0] for found in inner)
    return elements, 1 + max((found[1] for found in inner), default=0)


def _suppressed(work: Callable[..., object], *arguments: object) -> None:
    with contextlib.suppress(InvalidRequest):
        work(*arguments)


def request_body(data: bytes) -> None:
    """Checks that each face reads a body as a prompt that can be measured, judged and sent, or refuses it."""
    for read in (_chat, _responses, _messages, _counted):
        try:
            prompt = read(data)
        except TollkeeperError:
            continue
        measure_prompt(prompt)
        transcript(prompt, _MODEL)
        call = msgspec.structs.replace(_CALL, prompt=prompt, model=_MODEL)
        for wire in WIRES.values():
            with contextlib.suppress(TollkeeperError):
                body = wire.encode_request(call, stream=False, extra={})
                json.loads(body)


def _chat(data: bytes) -> Prompt:
    body = strict_json.decode(data, _chat_decoder)
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return chat_prompt.read_prompt(body, fields, _MODEL, CachingWish(None, None))


def _responses(data: bytes) -> Prompt:
    body = strict_json.decode(data, _responses_decoder)
    conversation = Conversation(_MODEL, lambda _: None)
    tools = read_tools(body.tools or ())
    caching = CachingWish(None, None)
    return responses_prompt.read_prompt(body, _MODEL, conversation, tools, caching)


def _messages(data: bytes) -> Prompt:
    body = strict_json.decode(data, _messages_decoder)
    return messages_prompt.read_prompt(
        body, _MODEL, frozenset(), lambda _: None, CachingWish(None, None)
    )


def _counted(data: bytes) -> Prompt:
    body = strict_json.decode(data, _count_decoder)
    return messages_prompt.read_counted_prompt(body, _MODEL, frozenset(), lambda _: None)


_chat_decoder = msgspec.json.Decoder(ChatRequest)
_responses_decoder = msgspec.json.Decoder(ResponsesRequest)
_messages_decoder = msgspec.json.Decoder(MessagesRequest)
_count_decoder = msgspec.json.Decoder(TokenCountRequest)


def whole_answer(data: bytes) -> None:
    """Checks that whole answers of every wire give events or a declared error. Usage is never negative."""
    for wire in WIRES.values():
        with contextlib.suppress(MalformedAnswer, TollkeeperError):
            found = wire.read_whole(_CALL, data, secrets=("secret",))
            _check_events(found.events)
        report = wire.read_usage(data)
        if report is not None:
            _check_events([report])


def streamed_answer(data: bytes) -> None:
    """Checks that stream records of every wire give the same events, however many are read at once."""
    records = data.split(b"\n")
    for wire in WIRES.values():
        together, failure = _read_stream(wire, [records])
        apart, failure_apart = _read_stream(wire, [[record] for record in records])
        assert together == apart
        assert failure == failure_apart
        _check_events(together)


def _read_stream(wire: Wire, batches: Iterable[list[bytes]]) -> tuple[list[Event], str | None]:
    reader = wire.open_stream(_STREAMED_CALL, secrets=("secret",))
    events: list[Event] = []
    # A tool call to which the backend gave no id gets a random id. Here, it gets a number.
    with patch("uuid.uuid4", side_effect=map(_numbered, itertools.count())):
        for batch in batches:
            events += reader.read(batch)
        events += reader.end_body()
    assert reader.ended
    return events, None if reader.failure is None else reader.failure.message


def _numbered(number: int) -> UUID:
    return UUID(int=number)


def _check_events(events: Iterable[Event]) -> None:
    for event in events:
        if isinstance(event, UsageReport) and event.usage is not None:
            usage = normalised(event.usage)
            if usage is not None:
                counts = msgspec.structs.asdict(usage)
                assert all(count >= 0 for count in counts.values() if isinstance(count, int))


def cursor(data: bytes) -> None:
    """Checks that a cursor of a cost report without a valid signature always raises a declared error."""
    with contextlib.suppress(InvalidRequest):
        _costs._read_cursor(_ORGANIZATION, _QUERY, data.decode("utf-8", "replace"))
        raise AssertionError("nobody has signed it")


def query(data: bytes) -> None:
    """Checks that a query string gives values or a declared error."""
    with contextlib.suppress(InvalidRequest):
        decode_query(data, organization.CostQuery)


_ORGANIZATION = OrganizationId(UUID(int=1))
_QUERY = CostQuery(
    start_time=0, end_time=None, project_ids=(), api_key_ids=(), group_by=(), limit=7
)
_costs = Costs(cast("Database", None), Vault(b"0" * 32), unix_now)
