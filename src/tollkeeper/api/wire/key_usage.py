"""What a key has spent: an extension, which is not part of the interface."""

from typing import Literal

from tollkeeper.api.wire.base import Sent


class KeyUsage(Sent):
    """Settled costs in USD, as decimal strings. Days and months are those of UTC."""

    object: Literal["key_usage"]
    api_key_id: str
    project_id: str
    today: str
    this_month: str
    currency: Literal["usd"]
