"""Logs when an organization is stopped because of overage, for log-based alerts."""

from collections.abc import Mapping

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.runtime.late_log import LateLogger
from tollkeeper.money.holds.rule import AccountState

_log = LateLogger("tollkeeper.ledger")


def report_stopped(
    before: Mapping[OrganizationId, AccountState], after: Mapping[OrganizationId, AccountState]
) -> None:
    for organization_id, state in after.items():
        if state.stopped and not before[organization_id].stopped:
            _log.error(
                "an organization's calls are stopped: its balance is below the bound",
                organization_id=str(organization_id),
                balance_usd=usd_from_picousd(state.balance_picousd),
                overage_bound_usd=usd_from_picousd(state.overage_bound_picousd or 0),
                overage_usd=usd_from_picousd(state.overage_picousd),
            )
