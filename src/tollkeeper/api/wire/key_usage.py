"""Defines the JSON of GET /v1/key/usage, an extension that is not part of the interface (the
specification of the gateway's API)."""

from typing import Literal

from msgspec import UNSET, UnsetType

from tollkeeper.api.wire.base import ResponseObject


class KeyCap(ResponseObject):
    """A spending cap of the key. Amounts are decimal strings in USD. `held` is reserved for calls in
    flight. `remaining` is negative if more was spent than the cap allows."""

    period: str
    amount: str
    held: str
    spent: str
    remaining: str
    resets_at: int | None


class KeyUsage(ResponseObject):
    """The settled costs of the key. Amounts are decimal strings in USD. Days, weeks and months are in
    UTC."""

    object: Literal["key_usage"]
    api_key_id: str
    project_id: str
    today: str
    this_month: str
    currency: Literal["usd"]
    # The caps of the key itself. Omitted if the key has none. The caps of the key's project and
    # organization, which are not listed here, apply too.
    caps: list[KeyCap] | UnsetType = UNSET
