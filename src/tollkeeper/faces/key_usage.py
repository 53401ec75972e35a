"""GET /v1/key/usage: the costs and caps of the key that asks."""

from msgspec import UNSET

from tollkeeper.core.money import usd_from_picousd
from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire.key_usage import KeyCap, KeyUsage
from tollkeeper.money.caps.rule import CapUse


async def key_usage_read(services: ApiServices, request: Request[None, None]) -> KeyUsage:
    caller = request.project_caller
    spent = await services.costs.key_usage(caller.organization_id, caller.project_id, caller.key_id)
    caps = await services.caps.cap_show_of_key(caller.organization_id, caller.key_id)
    return KeyUsage(
        object="key_usage",
        api_key_id=str(caller.key_id),
        project_id=str(caller.project_id),
        today=usd_from_picousd(spent.today_picousd),
        this_month=usd_from_picousd(spent.this_month_picousd),
        currency="usd",
        caps=[_cap(use) for use in caps] or UNSET,
    )


def _cap(use: CapUse) -> KeyCap:
    return KeyCap(
        period=use.cap.period,
        amount=usd_from_picousd(use.cap.amount_picousd),
        held=usd_from_picousd(use.held_picousd),
        spent=usd_from_picousd(use.spent_picousd),
        remaining=usd_from_picousd(use.remaining_picousd),
        resets_at=use.resets_at,
    )
