"""Token counting over HTTP: a Messages-shaped input becomes a chat prompt, which is counted."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tollkeeper.api.call_fields import affinity_of, estimate_of
from tollkeeper.api.http.endpoint import HeaderIndex, HeaderParameter, Reply, Request
from tollkeeper.api.http.request import header_values
from tollkeeper.api.http.session import session_of
from tollkeeper.api.http.strict_json import decode_within
from tollkeeper.api.messages.input import MessagesConversation
from tollkeeper.api.wire import messages as wire
from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.conventions import (
    KNOWN_BETA_FLAGS,
    MESSAGES_BETA_HEADER,
    MESSAGES_REQUEST_ID_HEADER,
    MESSAGES_VERSION_HEADER,
    TOKEN_COUNT_ESTIMATED_HEADER,
)
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inference import Call
from tollkeeper.services.calls.options import mapped_options, require_feature, require_small_schemas
from tollkeeper.services.use_cases import Services

_BETA_LENGTH_MAX = 512
_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

VERSION_HEADER = HeaderParameter(
    name=MESSAGES_VERSION_HEADER,
    description="The version of the Messages protocol, a date.",
    length_min=10,
    length_max=10,
    pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
)
BETA_HEADER = HeaderParameter(
    name=MESSAGES_BETA_HEADER,
    description=f"Beta flags, separated by commas. Known: {', '.join(sorted(KNOWN_BETA_FLAGS))}.",
    length_min=1,
    length_max=_BETA_LENGTH_MAX,
    pattern=f"^({'|'.join(sorted(KNOWN_BETA_FLAGS))})$",
)

_tool_head = msgspec.json.Decoder(wire.ToolHead)
_custom_tool = msgspec.json.Decoder(wire.CustomTool)


async def token_count(
    services: Services, request: Request[wire.TokenCountRequest, wire.TokenCountQuery]
) -> Reply:
    _check_protocol(request.headers)
    session = session_of(request.headers, request.conventions.session_headers)
    body, caller = request.body, request.customer
    model = await services.models.model_for_call(caller, body.model)
    conversation = MessagesConversation(model)
    if body.system is not None:
        conversation.instruct(body.system)
    for at, message in enumerate(body.messages):
        conversation.add(message, f"messages[{at}]")
    tools, server_tools = _tools(body.tools or (), model, request.conventions.messages_web_tools)
    require_small_schemas(model, _schemas(body))
    call = Call(
        request_id=request.id,
        organization_id=caller.organization_id,
        project_id=caller.project_id,
        key_id=caller.key_id,
        model=model,
        choices=1,
        output_tokens_max=1,
        output_bound_field="max_tokens",
        streamed=False,
        fields={"messages": conversation.messages, **prompt_fields(body, model, tools)},
        affinity=affinity_of(services, caller, session, None),
        images=conversation.images,
    )
    described = [*tools, *server_tools, call.fields.get("response_format")]
    estimate = estimate_of(conversation.messages, described) + conversation.extra_estimate
    counted = await services.token_counting.count(caller, call, estimate)
    return Reply(
        wire.TokenCount(input_tokens=counted.tokens),
        headers=[
            (TOKEN_COUNT_ESTIMATED_HEADER.encode(), b"true" if counted.estimated else b"false"),
            (MESSAGES_REQUEST_ID_HEADER.encode(), request.id.encode()),
        ],
    )


def _check_protocol(headers: HeaderIndex) -> None:
    """A date is a version that we speak; a beta flag that we do not know would mean something."""
    for version in header_values(headers, MESSAGES_VERSION_HEADER.encode()):
        if _VERSION.fullmatch(version.decode("latin-1")) is None:
            raise InvalidRequest("A version is a date, YYYY-MM-DD.", param=MESSAGES_VERSION_HEADER)
    beta = b",".join(header_values(headers, MESSAGES_BETA_HEADER.encode())).decode("latin-1")
    if len(beta) > _BETA_LENGTH_MAX:
        raise InvalidRequest(
            f"The header has at most {_BETA_LENGTH_MAX} characters.", param=MESSAGES_BETA_HEADER
        )
    for flag in filter(None, (flag.strip() for flag in beta.split(","))):
        if flag not in KNOWN_BETA_FLAGS:
            raise InvalidRequest(
                f"Unsupported beta header: {flag[:100]!r}.", param=MESSAGES_BETA_HEADER
            )


def _tools(
    found: Sequence[msgspec.Raw], model: Model, web_tools: frozenset[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Functions as chat has them, and the server tools, which no template renders."""
    functions: list[dict[str, Any]] = []
    server_tools: list[dict[str, Any]] = []
    for at, tool in enumerate(found):
        place = f"tools[{at}]"
        kind = decode_within(tool, _tool_head, place).type
        if kind in (None, "custom"):
            require_feature(model, Feature.TOOLS, "tools")
            custom = decode_within(tool, _custom_tool, place)
            function: dict[str, Any] = {"name": custom.name, "parameters": custom.input_schema}
            if custom.description is not None:
                function["description"] = custom.description
            functions.append({"type": "function", "function": function})
        elif kind in web_tools:
            server_tools.append(msgspec.json.decode(tool))
        else:
            raise OptionUnsupported(f"Tools of type {kind[:100]!r} are not supported.", param=place)
    return functions, server_tools


def _schemas(body: wire.TokenCountRequest) -> Iterator[tuple[str, object]]:
    """Every schema of the request, and where it is."""
    for at, tool in enumerate(body.tools or ()):
        yield f"tools[{at}].input_schema", msgspec.json.decode(tool).get("input_schema")
    if body.output_config is not None and body.output_config.format is not None:
        yield "output_config.format.schema", body.output_config.format.schema


def prompt_fields(
    body: wire.TokenCountRequest, model: Model, tools: list[dict[str, Any]]
) -> dict[str, Any]:
    """What may change the prompt beside its messages. What changes the answer only is left out."""
    fields: dict[str, Any] = {}
    if tools:
        fields["tools"] = tools
        match body.tool_choice:
            case wire.AnyChoice():
                fields["tool_choice"] = "required"
            case wire.NoChoice():
                fields["tool_choice"] = "none"
            case wire.ToolChoice(name=name):
                fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    if body.thinking is not None and "thinking" in model.options:
        thinks = not isinstance(body.thinking, wire.ThinkingDisabled)
        fields.update(mapped_options(model, {"thinking": thinks}))
    wanted = None if body.output_config is None else body.output_config.format
    if wanted is not None and Feature.STRUCTURED_OUTPUTS in model.supported_features:
        schema = {"name": "output", "schema": wanted.schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields
