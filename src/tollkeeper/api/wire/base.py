"""Defines base classes of the wire types, and the limits that several of them use."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class Received(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request object. Unknown properties are refused."""


class Tolerant(msgspec.Struct, kw_only=True):
    """A request object in which unknown properties are allowed. They are not decoded."""


class Sent(msgspec.Struct, kw_only=True):
    """A response object. Every field is present, unless the type says otherwise."""


FreeObject = dict[str, Any]

ModelId = Annotated[str, Meta(min_length=1, max_length=200)]
PolicyIds = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=120)]], Meta(max_length=1000)
]
OutputBound = Annotated[int, Meta(ge=1, le=999990)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
UnixTime = Annotated[int, Meta(ge=0)]
