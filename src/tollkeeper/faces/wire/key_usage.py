"""GET /v1/key/usage, an extension of the interface."""

from typing import Literal

from msgspec import UNSET, UnsetType

from tollkeeper.http.wire_base import ResponseObject


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
    # The key's own, omitted if there are none. Those of its project and organization apply too.
    caps: list[KeyCap] | UnsetType = UNSET
