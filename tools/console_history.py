"""Writes an invented history into a database: weeks of calls, payments and policies of several
organizations. The history is written through the gateway's services, and is for pictures of the console."""

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from msgspec.structs import replace
from tests.support import stripe_events as stripe
from tests.support.database_clock import DatabaseClock
from tests.support.gateway import Tenant
from tests.support.ledger import LedgerTenant, Process, hold_of, make_process

from tollkeeper.core.access import (
    ADMIN_PERMISSIONS,
    PROJECT_KEY_PERMISSIONS,
    KeyId,
    OrganizationId,
    ProjectId,
)
from tollkeeper.core.activity import ActivityRecord, VerdictRecord
from tollkeeper.core.catalog import Model
from tollkeeper.core.months import RANDOM_BITS, request_id
from tollkeeper.core.pricing import Bounds, hold_picousd
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.holds.values import Hold, Resolution, ResolutionKind
from tollkeeper.money.months import store as ledger_months
from tollkeeper.money.months.service import month_at
from tollkeeper.money.payments.stripe_events import read_event
from tollkeeper.policies.policy import Direction, Mode, Policy, Rule, Scope
from tollkeeper.reports.activity import partitions as activity_partitions
from tollkeeper.setup import running_services
from tollkeeper.setup.services import Services
from tollkeeper.setup.settings import Settings
from tollkeeper.tenants.idempotency import IdempotentRequest

_USD = 10**12
_DAYS = 45
# In this number of last days there are calls every two hours, before that once a day.
_BUSY_DAYS = 10
_BUSY_STEP = timedelta(hours=2)
# The fraction of calls whose cost stays unknown.
_UNSETTLED_SHARE = 0.004
_PROJECTS = {
    "Acme": ("website", "support desk"),
    "Globex": ("research",),
    "Initech": ("reports", "an assistant for the people who read the reports of every quarter"),
}


@dataclass(frozen=True)
class PastTenant:
    """Contains a project, and the key (`tenant`) with which calls can be made."""

    name: str
    tenant: Tenant
    key_id: KeyId

    @property
    def of_ledger(self) -> LedgerTenant:
        return LedgerTenant(self.tenant.organization_id, self.tenant.project_id, self.key_id)


@dataclass(frozen=True)
class History:
    tenants: list[PastTenant]
    policies: list[Policy]


async def write_history(settings: Settings, conninfo: str) -> History:
    """Writes weeks of history up to now. No other process may use the database at the same time, because
    its clock is changed."""
    now, random = datetime.now(UTC).replace(microsecond=0), Random(7)  # noqa: S311 - the same pictures each time
    with DatabaseClock(conninfo) as clock:
        clock.set(now - timedelta(days=_DAYS))
        async with running_services(
            settings, conninfo, clock=lambda: int(clock.now.timestamp())
        ) as services:
            await _make_partitions(services, now)
            tenants = await _make_tenants(services)
            policies = [
                await _draft(services, tenants[0], "No secrets", "Does the text contain a secret?"),
                await _draft(
                    services, tenants[0], "No medical advice", "Does it give medical advice?"
                ),
            ]
            process = make_process(services.database)
            for time in _times(now):
                clock.set(time)
                await _step(services, process, tenants, policies[0], time, random)
            await process.ledger.drain()
            clock.set(now)
            await _finish(services, tenants, policies)
    return History(tenants, policies)


def _times(now: datetime) -> Iterator[datetime]:
    for day in range(_DAYS - 1, _BUSY_DAYS, -1):
        yield now - timedelta(days=day, hours=3)
    time = now - timedelta(days=_BUSY_DAYS)
    while time < now:
        yield time
        time += _BUSY_STEP


async def _make_partitions(services: Services, now: datetime) -> None:
    async with services.database.transaction() as connection:
        for ago in range(_DAYS + 1):
            day = now - timedelta(days=ago)
            for table in activity_partitions.DAILY_TABLES:
                if day.date() not in await activity_partitions.find_days(connection, table):
                    await activity_partitions.add_day(connection, day.date(), table)
        known = {month_at(int(now.timestamp()))}
        for ago in range(_DAYS + 1):
            month = month_at(int((now - timedelta(days=ago)).timestamp()))
            if month not in known:
                known.add(month)
                await ledger_months.add_month(connection, month)


async def _make_tenants(services: Services) -> list[PastTenant]:
    tenants = []
    for name, projects in _PROJECTS.items():
        organization = await services.organizations.organization_create(name)
        _, admin_key = await services.admin_keys.admin_key_create(
            organization.id, "root", ADMIN_PERMISSIONS, None
        )
        await services.accounts.credit_grant(organization.id, 300 * _USD, "Contract of October")
        tenants += [
            await _make_project(services, name, organization.id, project, admin_key)
            for project in projects
        ]
    return tenants


async def _make_project(
    services: Services, name: str, organization: OrganizationId, project_name: str, admin_key: str
) -> PastTenant:
    project = await services.projects.project_create(organization, project_name)
    for key_name, expires_s in (("old laptop", None), ("contractor", 86_400 * 60)):
        made, _ = await services.project_keys.project_key_create_by_operator(
            project.id, key_name, PROJECT_KEY_PERMISSIONS, expires_s
        )
        if expires_s is None:
            await services.project_keys.project_key_suspend(made.id)
    key, value = await services.project_keys.project_key_create_by_operator(
        project.id, "production", PROJECT_KEY_PERMISSIONS, None
    )
    tenant = Tenant(organization, ProjectId(project.id), admin_key, value)
    return PastTenant(name, tenant, key.id)


async def _draft(services: Services, owner: PastTenant, name: str, rule: str) -> Policy:
    return await services.policies.policy_create(
        name,
        "Keeps credentials out of prompts" if "secret" in rule else "",
        Rule(rule, Direction.REQUEST, Mode.MONITORING, Scope.ORGANIZATION),
        IdempotentRequest(owner.tenant.organization_id, "policy_create", secrets.token_hex(8), b""),
    )


async def _step(
    services: Services,
    process: Process,
    tenants: list[PastTenant],
    policy: Policy,
    time: datetime,
    random: Random,
) -> None:
    """Writes the calls of one point in time: more by day than by night."""
    models = list(services.catalog.catalog.models)
    busy = 2 + (time.hour in range(7, 19)) * 5
    calls = [
        _call(services, process, tenant, random.choice(models), policy, time, random)
        for number, tenant in enumerate(tenants)
        for _ in range(random.randint(1, busy) // (1 + number // 2) + 1)
    ]
    await asyncio.gather(*calls)
    await services.activity.drain()


async def _call(
    services: Services,
    process: Process,
    owner: PastTenant,
    model: Model,
    policy: Policy,
    time: datetime,
    random: Random,
) -> None:
    started_ms = int(time.timestamp() * 1000) + random.randrange(3_000_000)
    identity = request_id(started_ms, secrets.randbits(RANDOM_BITS))
    prompt, completion = random.randrange(200, 60_000), random.randrange(20, 9_000)
    pricing = model.pricing
    bounds = Bounds(prompt_tokens=70_000, choices=1, output_tokens_each=10_000, images=0)
    hold = replace(
        hold_of(owner.of_ledger, 0),
        id=identity,
        model=model.id,
        pricing=pricing,
        bounds=bounds,
        hold_picousd=hold_picousd(pricing, bounds),
    )
    status = random.choices((200, 400, 429, 502), (93, 3, 2, 2))[0]
    cost, settlement = None, "none"
    if status in (200, 502):
        charged = (prompt, completion) if status == 200 else (0, 0)
        is_lost = random.random() < _UNSETTLED_SHARE
        settlement, cost = await _book(process, hold, *charged, is_lost=is_lost)
    duration_us = random.randrange(300_000, 9_000_000)
    probability = int(10_000 * random.random() ** 4)
    verdict = VerdictRecord(
        *(policy.id, 1, "request", "monitoring", probability, 5000, probability >= 5000, 31),
        judged_at_ms=started_ms + 31,
    )
    is_judged = policy.organization_id == owner.tenant.organization_id
    services.activity.record(
        ActivityRecord(
            request_id=str(identity),
            organization_id=owner.tenant.organization_id,
            project_id=owner.tenant.project_id,
            key_id=owner.key_id,
            operation="chat_create",
            model=model.id,
            streamed=True,
            started_at_ms=started_ms,
            duration_us=duration_us,
            first_piece_us=duration_us // 5 if status == 200 else None,
            status=status,
            error_code={400: "invalid_request", 429: "rate_limited", 502: "backend_failed"}.get(
                status
            ),
            finish="stop" if status == 200 else None,
            estimated=False,
            hold_picousd=None if settlement == "none" else hold.hold_picousd,
            cost_picousd=cost,
            settlement=settlement,
            backend="scripted" if settlement != "none" else None,
            replica="http://10.0.0.5:8000/v1" if status == 200 else None,
            declared_backend="scripted",
            prompt_tokens=prompt if settlement == "settled" else None,
            completion_tokens=completion if settlement == "settled" else None,
            cached_tokens=prompt // 3 if settlement == "settled" else None,
            reasoning_tokens=0 if settlement == "settled" else None,
            dispatched_us=2_000 if settlement != "none" else None,
            upstream_us=duration_us - 3_000 if settlement != "none" else None,
            overhead_us=random.randrange(400, 1500) if settlement != "none" else None,
            verdicts=(verdict,) if is_judged and status == 200 else (),
        )
    )


async def _book(
    process: Process, hold: Hold, prompt: int, completion: int, *, is_lost: bool
) -> tuple[str, int | None]:
    """Writes a call to the ledger: reserves the hold, and then charges the cost of the tokens, releases the
    hold, or leaves the call unsettled. Returns the kind of settlement and the cost."""
    decision = await process.ledger.hold(hold)
    assert decision.refusal is None, decision
    if is_lost:
        assert await process.ledger.mark_unsettled(hold, "the answer broke off")
        return "unsettled", None
    kind = ResolutionKind.SETTLED if prompt else ResolutionKind.RELEASED
    costs = (prompt * hold.pricing.prompt, completion * hold.pricing.completion)
    resolution = Resolution(hold.organization_id, hold.id, kind, "call", *costs)
    assert await process.ledger.resolve(resolution, hold)
    return kind.value, sum(costs) if prompt else None


async def _finish(services: Services, tenants: list[PastTenant], policies: list[Policy]) -> None:
    """Writes payments, a refund and caps, and publishes a policy."""
    first, last = tenants[0].tenant, tenants[-1].tenant
    payment = stripe.new_payment()
    for body in (
        stripe.succeeded(payment, 25_00, first.organization_id),
        stripe.charge_refunded(payment, 5_00),
        stripe.succeeded(stripe.new_payment(), 10_00, first.organization_id, livemode=False),
    ):
        await services.payments.payment_receive(read_event(body))
    caps = services.caps
    await caps.cap_set(first.organization_id, 50 * _USD, CapPeriod.MONTH)
    await caps.cap_set(first.organization_id, 20 * _USD, CapPeriod.WEEK, first.project_id)
    await caps.cap_set(last.organization_id, 6 * _USD, CapPeriod.MONTH)
    await services.accounts.overage_set(first.organization_id, 2 * _USD)
    for policy in policies[:1]:
        await services.policies.policy_publish(policy.organization_id, policy.id, policy.revision)
