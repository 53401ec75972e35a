"""The handler of GET /v1/key/usage."""

from tollkeeper.api.http.endpoint import Request
from tollkeeper.api.wire.key_usage import KeyUsage
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.use_cases import Services


async def key_usage_read(services: Services, request: Request[None, None]) -> KeyUsage:
    caller = request.project_caller
    spent = await services.costs.key_usage(caller.organization_id, caller.project_id, caller.key_id)
    return KeyUsage(
        object="key_usage",
        api_key_id=str(caller.key_id),
        project_id=str(caller.project_id),
        today=usd_from_picousd(spent.today_picousd),
        this_month=usd_from_picousd(spent.this_month_picousd),
        currency="usd",
    )
