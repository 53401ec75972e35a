"""Defines the wire types of a key's costs: an extension, which is not part of the interface."""

from typing import Literal

from msgspec import UNSET, UnsetType

from tollkeeper.api.wire.base import Sent


class KeyCap(Sent):
    """A cap of the key, in USD as decimal strings. `remaining` is negative where more was spent than
    the cap allows."""

    period: str
    amount: str
    held: str
    spent: str
    remaining: str
    resets_at: int | None


class KeyUsage(Sent):
    """Settled costs in USD, as decimal strings. Days, weeks and months are those of UTC."""

    object: Literal["key_usage"]
    api_key_id: str
    project_id: str
    today: str
    this_month: str
    currency: Literal["usd"]
    # The key's own caps, if it has any. The caps of its project and its organization apply too.
    caps: list[KeyCap] | UnsetType = UNSET
