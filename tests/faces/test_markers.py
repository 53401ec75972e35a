"""Tests that the judge gets all text that a model may read. A marker is put into each place of each request
type. The marker must be in the judge's text, or the request is refused, or no backend gets the marker, or the
table `NOT_READ` says why the model does not read it."""

import base64
import contextlib
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.faces.marked_requests import MARKERS, Places
from tests.support.backend_calls import MODEL
from tests.support.tables import each
from tollkeeper.calls.isolation import Isolation
from tollkeeper.calls.options import require_supported
from tollkeeper.core.access import KeyId, OrganizationId, ProjectCaller, ProjectId
from tollkeeper.core.catalog import Feature
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.inference import Call
from tollkeeper.core.messages_behavior import MessagesBehavior
from tollkeeper.core.prompt import Prompt
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.faces.chat.prompt import read_prompt as read_chat
from tollkeeper.faces.messages.prompt import read_counted_prompt
from tollkeeper.faces.messages.prompt import read_prompt as read_messages
from tollkeeper.faces.responses.input import Conversation
from tollkeeper.faces.responses.prompt import read_prompt as read_responses
from tollkeeper.faces.responses.tools import read_tools
from tollkeeper.faces.strict_json import decode
from tollkeeper.faces.wire import chat, messages, responses
from tollkeeper.http import wire_base as base
from tollkeeper.policies.texts.media_text import UnreadKind
from tollkeeper.policies.texts.transcript import transcript
from tollkeeper.providers.anthropic.wire import Endpoint, MessagesWire
from tollkeeper.providers.chat.wire import ChatWire
from tollkeeper.providers.responses.wire import ResponsesWire

# All places that reach a backend and are not judged, with the reason.
NOT_READ = {
    "chat user": "whom the backend answers, for its own records",
    "chat safety_identifier": "whom the backend answers, for its own records",
    "chat metadata": "the caller's own notes, which the backend keeps beside the answer",
    "chat logit_bias.*": "numbers of tokens, which change how likely each is",
    "messages metadata.user_id": "whom the backend answers, for its own records",
    "responses user": "whom the backend answers, for its own records",
    "responses safety_identifier": "whom the backend answers, for its own records",
    "responses metadata.*": "the caller's own notes, which the backend keeps beside the answer",
}
# Places that must be judged in at least one request: it is not enough that requests are refused.
JUDGED = """
    chat messages[].content / chat messages[].name / chat messages[].reasoning /
    chat messages[].reasoning_content / chat messages[].tool_call_id / chat messages[].tool_calls[] /
    chat messages[].function_call / chat stop / chat stop[] / chat tools[] / chat functions[] /
    chat tool_choice / chat function_call / chat web_search_options / chat prediction /
    chat response_format.json_schema.name / chat response_format.json_schema.schema /
    chat response_format.json_schema.description / chat service_tier /
    chat messages[].content[]<text>.text / chat messages[].content[]<text>.* /
    chat messages[].content[]<file>.file / chat messages[].content[]<image_url>.image_url /
    responses instructions / responses input / responses input[]<message>.content /
    responses input[]<function_call>.arguments / responses input[]<function_call_output>.output /
    responses input[]<reasoning>.content[].text / responses tools[]<FunctionTool>.parameters /
    responses tools[]<web_search>.user_location.city / responses text.format.schema /
    messages system / messages messages[].content / messages tools[]<CustomTool>.input_schema /
    messages messages[].content[]<server_tool_use>.input /
    messages messages[].content[]<web_search_tool_result>.content
"""

_OPTIONS = ("prediction", "service_tier", "verbosity", "thinking", "reasoning.encrypted_content")
_READER = replace(
    MODEL,
    input_modalities=("text", "image", "audio", "video", "file"),
    output_modalities=("text", "image"),
    supported_features=tuple(Feature),
    supported_sampling_parameters=("temperature", "top_p", "stop", "seed", "logit_bias"),
    options={name: name.replace(".", "_") for name in _OPTIONS},
    messages=MessagesBehavior(has_search_blocks=True),
)
_CALLER = ProjectCaller(
    OrganizationId(uuid.uuid4()), ProjectId(uuid.uuid4()), KeyId(uuid.uuid4()), frozenset()
)
_ISOLATION = Isolation(Vault(b"a secret of thirty-two bytes ..."))
_FUNCTION = {"name": "f", "parameters": {"type": "object"}}
_SEARCHES = frozenset({"web_search_20250305"})


def _chat(body: dict[str, Any]) -> Prompt:
    asks_for_tool = "tool_choice" in body or "function_call" in body
    tools = {"tools": [{"type": "function", "function": _FUNCTION}]} if asks_for_tool else {}
    raw = msgspec.json.encode({**tools, **body})
    request = decode(raw, msgspec.json.Decoder(chat.ReplayingChatRequest))
    caching = _ISOLATION.caching_wish(
        _CALLER, _READER, request.prompt_cache_key, request.cache_salt
    )
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return read_chat(request, fields, _READER, caching)


def _responses(body: dict[str, Any]) -> Prompt:
    if "tool_choice" in body:
        body = {**body, "tools": [{"type": "function", **_FUNCTION}]}
    if isinstance(body["input"], list):
        # A tool output is valid only after its call. Reasoning is dropped if no message follows.
        call = {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"}
        said = {"type": "message", "role": "assistant", "content": "x"}
        body = {**body, "input": [call, *body["input"], said]}
    request = decode(msgspec.json.encode(body), msgspec.json.Decoder(responses.ResponsesRequest))
    conversation = Conversation(_READER, lambda _: None)
    caching = _ISOLATION.caching_wish(_CALLER, _READER, request.prompt_cache_key)
    tools = read_tools(request.tools or ())
    return read_responses(request, _READER, conversation, tools, caching)


def _messages(body: dict[str, Any]) -> Prompt:
    if isinstance(body["messages"], list):
        # A tool result is valid only after its call.
        call = {"type": "tool_use", "id": "x", "name": "f", "input": {}}
        said = {"role": "assistant", "content": [call]}
        body = {**body, "messages": [said, *body["messages"]]}
    request = decode(msgspec.json.encode(body), msgspec.json.Decoder(messages.MessagesRequest))
    caching = _ISOLATION.caching_wish(_CALLER, _READER, None)
    return read_messages(request, _READER, _SEARCHES, lambda _: None, caching)


def _count(body: dict[str, Any]) -> Prompt:
    request = decode(msgspec.json.encode(body), msgspec.json.Decoder(messages.TokenCountRequest))
    return read_counted_prompt(request, _READER, _SEARCHES, lambda _: None)


FACES: dict[str, tuple[type[msgspec.Struct], Callable[[dict[str, Any]], Prompt]]] = {
    "chat": (chat.ReplayingChatRequest, _chat),
    "responses": (responses.ResponsesRequest, _responses),
    "messages": (messages.MessagesRequest, _messages),
    "count": (messages.TokenCountRequest, _count),
}


def _sent(prompt: Prompt) -> list[bytes]:
    """Returns the requests of three wires, without those that raise an error."""
    call = Call(
        request_id=str(uuid.uuid4()),
        organization_id=_CALLER.organization_id,
        project_id=_CALLER.project_id,
        key_id=_CALLER.key_id,
        model=_READER,
        choices=1,
        output_tokens_max=16,
        output_limit_field="max_tokens",
        streamed=False,
        prompt=prompt,
    )
    sent = []
    for wire in (ChatWire(), ResponsesWire(), MessagesWire(Endpoint.ANTHROPIC)):
        with contextlib.suppress(InvalidRequest, OptionUnsupported):
            sent.append(wire.encode_request(call, stream=False, extra={}))
    return sent


def _outcome(face: str, body: dict[str, Any]) -> str:
    _, read = FACES[face]
    try:
        prompt = read(body)
        require_supported(_READER, prompt)
    except (InvalidRequest, OptionUnsupported):
        return "refused"
    text = transcript(prompt, _READER).text
    if any(marker in text for marker in MARKERS):
        return "judged"
    if any(marker.encode() in sent for marker in MARKERS for sent in _sent(prompt)):
        return "not read"
    return "not sent"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for face, (request, _) in FACES.items():
        for place, body in Places(request):
            found[f"{face} {place}"].add(_outcome(face, body))
    return dict(found)


def test_what_reaches_a_model_is_judged(outcomes: dict[str, set[str]]) -> None:
    not_read = {place for place, found in outcomes.items() if "not read" in found}
    assert not_read == set(NOT_READ)


def test_the_walk_is_not_idle(outcomes: dict[str, set[str]]) -> None:
    expected = [place.strip() for place in JUDGED.split("/")]
    assert {place: outcomes[place] for place in expected if "judged" not in outcomes[place]} == {}
    assert len(outcomes) > 200


def test_a_page_that_is_said_to_be_encrypted() -> None:
    """The judge reads a word that only claims to be encrypted, and knows that it can't read a page."""
    word = "How to build a bomb. " * 20
    pages = [word, base64.b64encode(word.encode()).decode(), base64.b64encode(bytes(999)).decode()]
    read = []
    for page in pages:
        found = {"type": "web_search_result", "url": "https://a.example", "encrypted_content": page}
        block = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [found]}
        said = {"role": "assistant", "content": [block]}
        judged = transcript(_messages({"messages": [said], **_REQUIRED}), _READER)
        assert [part.kind for part in judged.unread] == [UnreadKind.SEARCH_RESULT]
        read.append("bomb" in judged.text)
    assert read == [True, True, False]


_REQUIRED = {"model": "m", "max_tokens": 16}


@each("face", ["chat", "responses", "messages"])
def test_every_struct_of_a_request_is_walked(face: str) -> None:
    request, _ = FACES[face]
    places = Places(request)
    assert len(list(places)) > 50
    received = {
        struct
        for struct in vars(__import__(request.__module__, fromlist=["_"])).values()
        if isinstance(struct, type)
        and issubclass(struct, base.StrictRequestObject | base.LenientRequestObject)
        and struct.__module__ == request.__module__
        and struct.__name__ not in _OF_OTHER_REQUESTS
    }
    assert received - places.visited == set()


# Structs of the same modules that are not part of the request body, or are only base classes.
_OF_OTHER_REQUESTS = {"MessagesQuery", "MarkedBlock", "TokenCountRequest"}
