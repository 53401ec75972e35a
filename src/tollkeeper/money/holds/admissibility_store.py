"""Checks without a lock whether a call could be admitted."""

from typing import LiteralString

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.database.database import Connection
from tollkeeper.money.holds.account_rows import key_status_of, project_of
from tollkeeper.money.holds.rule import (
    REFUSED_AS_UNKNOWN,
    AccountState,
    AdmissionRequest,
    Decision,
    DefaultLimits,
    decide,
)
from tollkeeper.money.holds.spend import Spend

# No caps and concurrency either: resolutions that aren't folded yet could make room for the call.
_NO_LIVE_HOLDS = 0


async def could_admit(
    connection: Connection,
    *,
    organization_id: OrganizationId,
    project_id: ProjectId,
    key_id: KeyId,
    model_id: str,
    cost_picousd_min: int,
    limits: DefaultLimits,
) -> Decision:
    """If it cost only `cost_picousd_min`: checks key, project, model, rate and credit. Takes
    nothing, so the call may still be rejected later."""
    cursor = await connection.execute(
        _READ, {"organization": organization_id, "project": project_id, "key": key_id}
    )
    row = await cursor.fetchone()
    if row is None:
        return REFUSED_AS_UNKNOWN
    now_us, available, stopped, archived, *rate, models, revoked, suspended, expired, key_models = (
        row
    )
    requests_per_minute, rate_units, rate_at_us = rate
    spend = (0, 0, 0)
    project = project_of(
        (
            *(organization_id, project_id, *spend, _NO_LIVE_HOLDS),
            *(requests_per_minute, None, rate_units, rate_at_us, archived, models),
        ),
        limits,
        now_us,
    )
    state = AccountState(
        available_picousd=available,
        overage_picousd=0,
        spend=Spend(),
        projects={project_id: project},
        keys={key_id: key_status_of(revoked, suspended, expired)},
        stopped=stopped,
        key_models={key_id: tuple(key_models or ())},
    )
    request = AdmissionRequest(project_id, key_id, cost_picousd_min, model=model_id)
    _, [decision] = decide(state, [request], now_us=now_us)
    return decision


# Resolved holds' unspent amounts are available, even before they're folded.
_READ: LiteralString = """
    SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
           a.available + coalesce((
               SELECT sum(u.hold - u.settled) FROM unfolded u
               WHERE u.organization_id = a.organization_id AND u.kind = 'resolved'), 0),
           a.stopped, p.archived_at IS NOT NULL, pa.requests_per_minute, pa.rate_units, pa.rate_at_us,
           p.models, k.revoked_at IS NOT NULL, k.suspended_at IS NOT NULL,
           coalesce(k.expires_at <= clock_timestamp(), false), k.models
    FROM accounts a
    JOIN project_accounts pa ON pa.organization_id = a.organization_id
        AND pa.project_id = %(project)s
    JOIN projects p ON p.organization_id = a.organization_id AND p.id = pa.project_id
    JOIN project_keys k ON k.organization_id = a.organization_id AND k.id = %(key)s
    WHERE a.organization_id = %(organization)s
"""
