"""Base classes of the wire types, and field types that several of them use."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class StrictRequestObject(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON object of a request. Unknown properties are rejected."""


class LenientRequestObject(msgspec.Struct, kw_only=True):
    """A JSON object of a request. Unknown properties are allowed and ignored."""


class ResponseObject(msgspec.Struct, kw_only=True):
    """A JSON object of a response. Every field is present, except fields with the value `UNSET` and, in
    structs with `omit_defaults`, fields with their default value."""


FreeObject = dict[str, Any]

ModelId = Annotated[str, Meta(min_length=1, max_length=200)]
PolicyIds = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=120)]], Meta(max_length=1000)
]
OutputLimit = Annotated[int, Meta(ge=1, le=999990)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
UnixTime = Annotated[int, Meta(ge=0)]
