"""The header with the cost of a call, where the operator has named one."""

import msgspec

from tollkeeper.api.http.conventions import HttpConventions
from tollkeeper.api.http.endpoint import Reply
from tollkeeper.domain.money import usd_from_picousd


def with_cost(
    result: msgspec.Struct, cost_picousd: int | None, conventions: HttpConventions
) -> msgspec.Struct | Reply:
    """The cost is None where nobody knows it yet."""
    if not conventions.cost_header or cost_picousd is None:
        return result
    name, value = conventions.cost_header.encode(), usd_from_picousd(cost_picousd).encode()
    return Reply(result, headers=[(name, value)])
