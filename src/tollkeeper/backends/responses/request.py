"""A call as a Responses request: the chat fields that it carries, each in its place there.

What the protocol has no place for is refused by its name. Fields that a model's `options` put
somewhere themselves travel as they are.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from tollkeeper.backends.answer_json import ABSENT, given
from tollkeeper.backends.responses.input import Input
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inference import Call

# What a model can be asked at most when its backend speaks this protocol.
SAMPLING_PARAMETERS = frozenset({"temperature", "top_p"})
INPUT_MODALITIES = frozenset({"text", "image", "file"})
OUTPUT_MODALITIES = frozenset({"text"})
# The request's own wish for reasoning that goes back to the backend unread.
ENCRYPTED_REASONING = "encrypted_reasoning"
# Where options of both our protocols stand in it. A tier has a price: whoever offers one says so.
OPTIONS: Mapping[str, str] = {
    "verbosity": "text.verbosity",
    "reasoning.summary": "reasoning.summary",
    "reasoning.generate_summary": "reasoning.summary",
    "reasoning.encrypted_content": ENCRYPTED_REASONING,
    "max_tool_calls": "max_tool_calls",
}
_WITHOUT_PLACE = (
    *("stop", "seed", "logit_bias", "frequency_penalty", "presence_penalty"),
    *("modalities", "audio", "cache_salt"),
)
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"
_NOTHING: Mapping[str, Any] = {}


_Function = dict[str, msgspec.Raw]


class _Tool(msgspec.Struct):
    function: _Function | None = None


class _Named(msgspec.Struct):
    name: str


class _AllowedTools(msgspec.Struct):
    mode: str
    tools: "list[_Choice]"


class _Choice(msgspec.Struct):
    """How chat names a tool, or several."""

    type: str | None = None
    name: str | None = None
    function: _Named | None = None
    allowed_tools: _AllowedTools | None = None


class _Schema(msgspec.Struct):
    name: str
    schema: msgspec.Raw = ABSENT
    description: str | None = None
    strict: bool | None = None


class _Format(msgspec.Struct):
    type: str
    json_schema: _Schema | None = None


class _Location(msgspec.Struct):
    approximate: dict[str, Any]


class _WebSearch(msgspec.Struct, forbid_unknown_fields=True):
    search_context_size: str | None = None
    user_location: _Location | None = None


_Read = TypeVar("_Read")
_tools = msgspec.json.Decoder(list[_Tool])
_functions = msgspec.json.Decoder(list[_Function])
_choice = msgspec.json.Decoder(str | _Choice)
_format = msgspec.json.Decoder(_Format)
_web_search = msgspec.json.Decoder(_WebSearch)
_encoder = msgspec.json.Encoder()


def encode_responses_request(
    call: Call, *, stream: bool, extra: Mapping[str, Any] = _NOTHING
) -> bytes:
    """The body for the backend. Nothing of it may be kept there."""
    fields = dict(call.fields)
    for name in _WITHOUT_PLACE:
        if name in fields:
            raise OptionUnsupported(f"The backend's protocol has no {name}.", param=name)
    conversation = Input().add(fields.pop("messages", []))
    body: dict[str, Any] = {
        "model": call.model.upstream_model,
        "input": conversation.items,
        "max_output_tokens": call.output_tokens_max,
        "stream": stream,
        "store": False,
    }
    if conversation.instructions is not None:
        body["instructions"] = conversation.instructions
    body.update(_tool_fields(fields))
    body.update(_text_fields(fields))
    body.update(_reasoning_fields(fields))
    included = _included(fields)
    if included:
        body["include"] = included
    return _encoder.encode({**fields, **extra, **body})


def _tool_fields(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    described = _taken(fields, "tools", _tools) or []
    tools = [_flat(tool.function, f"tools[{at}]") for at, tool in enumerate(described)]
    functions = _taken(fields, "functions", _functions)
    if functions and not tools:
        # One call is all that an answer of the old kind can hold.
        found["parallel_tool_calls"] = False
    tools += [_flat(function, "functions") for function in functions or ()]
    search = _taken(fields, "web_search_options", _web_search)
    if search is not None:
        tools.append(_search_tool(search))
    if tools:
        found["tools"] = tools
    for name in ("tool_choice", "function_call"):
        choice = _taken(fields, name, _choice)
        if choice is not None:
            found["tool_choice"] = _chosen(choice, name)
    return found


def _flat(function: _Function | None, place: str) -> dict[str, Any]:
    if function is None or "name" not in function:
        raise OptionUnsupported("Only functions are supported here.", param=place)
    # What is not said of strictness means no in chat, and yes here.
    strict = given(function.get("strict", ABSENT)) or False
    return {"parameters": None, **function, "type": "function", "strict": strict}


def _search_tool(search: _WebSearch) -> dict[str, Any]:
    tool: dict[str, Any] = {"type": "web_search"}
    if search.search_context_size is not None:
        tool["search_context_size"] = search.search_context_size
    if search.user_location is not None:
        tool["user_location"] = {**search.user_location.approximate, "type": "approximate"}
    return tool


def _chosen(choice: str | _Choice, place: str) -> str | dict[str, Any]:
    if isinstance(choice, str):
        return choice
    allowed = choice.allowed_tools
    if allowed is not None:
        tools = [_named(tool, place) for tool in allowed.tools]
        return {"type": "allowed_tools", "mode": allowed.mode, "tools": tools}
    return _named(choice, place)


def _named(choice: _Choice, place: str) -> dict[str, Any]:
    name = choice.name if choice.function is None else choice.function.name
    if name is None or choice.type not in (None, "function"):
        raise OptionUnsupported("Only functions can be chosen here.", param=place)
    return {"type": "function", "name": name}


def _text_fields(fields: dict[str, Any]) -> dict[str, Any]:
    text = _folder(fields, "text")
    wanted = _taken(fields, "response_format", _format)
    if wanted is not None and wanted.json_schema is not None:
        schema = wanted.json_schema
        described = {"description": schema.description, "strict": schema.strict}
        text["format"] = {
            "type": wanted.type,
            "name": schema.name,
            "schema": given(schema.schema),
            **{name: value for name, value in described.items() if value is not None},
        }
    elif wanted is not None:
        text["format"] = {"type": wanted.type}
    if "verbosity" in fields:
        text["verbosity"] = fields.pop("verbosity")
    return {"text": text} if text else {}


def _reasoning_fields(fields: dict[str, Any]) -> dict[str, Any]:
    reasoning = _folder(fields, "reasoning")
    if "reasoning_effort" in fields:
        reasoning["effort"] = fields.pop("reasoning_effort")
    return {"reasoning": reasoning} if reasoning else {}


def _included(fields: dict[str, Any]) -> list[str]:
    wished = {"logprobs": _LOGPROBS, ENCRYPTED_REASONING: _ENCRYPTED}
    return [word for name, word in wished.items() if fields.pop(name, False)]


def _folder(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """What the model's options have put there already."""
    found = fields.pop(name, None)
    return dict(found) if isinstance(found, dict) else {}


def _taken(fields: dict[str, Any], name: str, decoder: msgspec.json.Decoder[_Read]) -> _Read | None:
    """The value of a field, taken out of the rest; None where there is none."""
    if name not in fields:
        return None
    value = fields.pop(name)
    written = value if isinstance(value, msgspec.Raw) else _encoder.encode(value)
    try:
        return decoder.decode(written)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{name} is not as the protocol has it.", param=name) from error


def narrowed(declared: Iterable[str], possible: frozenset[str]) -> tuple[str, ...]:
    """What is declared and possible, in the order of the declaration."""
    return tuple(name for name in declared if name in possible)
