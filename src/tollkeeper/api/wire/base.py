"""What all wire types share: how strict they are, and the bounds that many of them use."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class Received(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ours: an unknown property is refused."""


class Tolerant(msgspec.Struct, kw_only=True):
    """A part of a body in which further properties are allowed and travel on unread."""


class Sent(msgspec.Struct, kw_only=True):
    """A result. Every field is always there."""


FreeObject = dict[str, Any]

ModelId = Annotated[str, Meta(min_length=1, max_length=200)]
PolicyIds = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=120)]], Meta(max_length=1000)
]
OutputBound = Annotated[int, Meta(ge=1, le=999990)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
UnixTime = Annotated[int, Meta(ge=0)]
