"""POST /v1/messages and POST /v1/messages/count_tokens."""

from datetime import date
from functools import partial

import msgspec

from tollkeeper.core.conventions import (
    COUNT_NEUTRAL_BETA_FLAGS,
    MESSAGES_BETA_HEADER,
    MESSAGES_VERSION_HEADER,
    MESSAGES_WEB_TOOLS,
    TOKEN_COUNT_ESTIMATED_HEADER,
)
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.faces.calls import new_call
from tollkeeper.faces.endpoint import HeaderParameter, Request, Streamed
from tollkeeper.faces.messages.call import message_call
from tollkeeper.faces.messages.prompt import read_counted_prompt
from tollkeeper.faces.messages.result import MessageAssembly
from tollkeeper.faces.messages.stream import MessageStream
from tollkeeper.faces.request import header_values
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import messages as wire
from tollkeeper.http.exchange import HeaderIndex

# Of the header with beta flags, which ask for features not yet in the protocol's stable version.
_BETA_LENGTH_MAX = 512
# A call's is longer, because clients name many more flags there. Unknown ones are ignored.
_CALL_BETA_LENGTH_MAX = 4096

VERSION_HEADER = HeaderParameter(
    name=MESSAGES_VERSION_HEADER,
    description="The version of the Messages protocol: a date, YYYY-MM-DD.",
    pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    format="date",
    examples=("2023-06-01",),
)
_NEUTRAL_FLAGS = sorted(COUNT_NEUTRAL_BETA_FLAGS)
_BETA_FLAG = f"({'|'.join(_NEUTRAL_FLAGS)})"
BETA_HEADER = HeaderParameter(
    name=MESSAGES_BETA_HEADER,
    description="Beta flags, separated by commas. Every model accepts the flags that the schema's "
    "`pattern` lists. Some models accept more flags.",
    length_max=_BETA_LENGTH_MAX,
    # As in every header value, no blanks at either end.
    pattern=rf"^{_BETA_FLAG}?([ \t]*,([ \t]*{_BETA_FLAG})?)*$",
    examples=tuple(_NEUTRAL_FLAGS),
)


async def message_create(
    services: ApiServices, request: Request[wire.MessagesRequest, wire.MessagesQuery]
) -> msgspec.Struct | Streamed:
    flags = _beta_flags(request.headers, _CALL_BETA_LENGTH_MAX)
    prepared = await message_call(services, request, flags)
    if request.body.stream:
        return Streamed(MessageStream(services, request, prepared))
    assembly = MessageAssembly(prepared)
    tab = await services.inference.infer(prepared.call, prepared.plan, assembly, request)
    request.add_cost_header(tab.cost_picousd)
    return assembly.message(tab.usage)


async def token_count(
    services: ApiServices, request: Request[wire.TokenCountRequest, wire.MessagesQuery]
) -> wire.TokenCount:
    flags = _beta_flags(request.headers, _BETA_LENGTH_MAX)
    body, caller = request.body, request.project_caller
    plan = services.plans.cached(caller, body.model)
    if plan is None:
        plan = await services.plans.create(caller, body.model)
    model = plan.model
    for flag in flags:
        if flag not in COUNT_NEUTRAL_BETA_FLAGS and flag not in model.messages.beta_flags:
            raise InvalidRequest(
                f"The model {model.id} does not support the beta flag {flag[:100]!r}.",
                param=MESSAGES_BETA_HEADER,
            )
    unseal = partial(services.reasoning_seal.unseal, caller)
    call = await new_call(
        services,
        request,
        plan,
        partial(read_counted_prompt, body, model, MESSAGES_WEB_TOOLS, unseal),
        # With a lower limit, a reasoning budget that the model supports could be rejected.
        output_tokens_max=model.max_output_length,
        streamed=False,
        beta_flags=flags,
    )
    counted = await services.token_counting.count(caller, call)
    estimated = f"{TOKEN_COUNT_ESTIMATED_HEADER}: {str(counted.estimated).lower()}\r\n"
    request.further_headers = estimated.encode()
    return wire.TokenCount(input_tokens=counted.tokens)


def _beta_flags(headers: HeaderIndex, length_max: int) -> tuple[str, ...]:
    """Also checks the version header, because every request with beta flags may have one."""
    versions = header_values(headers, MESSAGES_VERSION_HEADER.encode())
    if len(versions) > 1 or not all(map(_is_date, versions)):
        raise InvalidRequest(
            "The version must be a date, YYYY-MM-DD, in one header.", param=MESSAGES_VERSION_HEADER
        )
    beta = b",".join(header_values(headers, MESSAGES_BETA_HEADER.encode())).decode("latin-1")
    if len(beta) > length_max:
        raise InvalidRequest(
            f"The header may have at most {length_max} characters.",
            param=MESSAGES_BETA_HEADER,
        )
    return tuple(dict.fromkeys(filter(None, (flag.strip(" \t") for flag in beta.split(",")))))


def _is_date(value: bytes) -> bool:
    """`fromisoformat` also reads other forms, such as 20230601."""
    text = value.decode("latin-1")
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
