"""Reads the Idempotency-Key header of requests that create objects."""

import re
from typing import Any

import msgspec

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.faces.endpoint import HeaderParameter, Request
from tollkeeper.faces.request import header_values
from tollkeeper.tenants.idempotency import IdempotentRequest

_NAME = "Idempotency-Key"
_PRINTABLE = re.compile(rb"[\x20-\x7e]{8,200}")

IDEMPOTENCY_KEY = HeaderParameter(
    name=_NAME,
    description="A key that the client chooses for one operation. Send the same key again only to "
    "repeat the identical request.",
    required=True,
    length_min=8,
    length_max=200,
    pattern=r"^[!-~][ -~]{6,198}[!-~]$",
)


def idempotent_request(
    request: Request[Any, Any], operation: str, content: msgspec.Struct
) -> IdempotentRequest:
    """`content` is the decoded body, with each list of ids in one form."""
    values = header_values(request.headers, _NAME.lower().encode())
    if len(values) != 1 or _PRINTABLE.fullmatch(values[0]) is None:
        raise InvalidRequest(
            "One Idempotency-Key header of 8 to 200 printable characters is required.", param=_NAME
        )
    # Sorted keys and lower case, because a repeated request may be written differently.
    path = {name: value.lower() for name, value in request.path.items()}
    meaning = msgspec.json.encode([path, content], order="deterministic")
    return IdempotentRequest(
        organization_id=request.admin_caller.organization_id,
        operation=operation,
        key=values[0].decode("ascii"),
        meaning=meaning,
    )
