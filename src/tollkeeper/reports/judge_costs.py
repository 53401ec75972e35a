"""Counts the judge's tokens and cost by organization, backend, model and UTC day. Sums are written
every few seconds, because there may be a thousand questions about one text. A killed process loses
what it hasn't written."""

import structlog

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.pricing import cost_of
from tollkeeper.core.reports import DAY_S, DayRange
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.core.usage import Usage
from tollkeeper.database.database import Database
from tollkeeper.reports import rollups, sums
from tollkeeper.reports.rollups import JudgeUsage
from tollkeeper.tenants.models import CurrentCatalog

_ROWS_PER_TRANSACTION = 1000

_log = structlog.get_logger("tollkeeper.policies")


class JudgeCosts:
    def __init__(self, database: Database, clock: Clock, current: CurrentCatalog) -> None:
        self._database = database
        self._clock = clock
        self._current = current
        # By organization, day, backend and model.
        self._unwritten: dict[tuple[OrganizationId, int, str, str], JudgeUsage] = {}

    def note(
        self,
        organization_id: OrganizationId,
        judge: Model,
        usage: Usage | None,
        reported_cost_picousd: int,
    ) -> None:
        """One question that may be charged. `usage` is None if it wasn't reported."""
        now = self._clock()
        used = JudgeUsage(organization_id, now // DAY_S, judge.backend, judge.upstream_model, 1)
        if usage is None:
            used.unreported_questions = 1
        else:
            used.input_tokens = usage.prompt_tokens
            used.cached_tokens = usage.cached_tokens
            used.cache_write_tokens = usage.cache_write_tokens + usage.cache_write_1h_tokens
            used.output_tokens = usage.completion_tokens
            # Only there if clients can call the model too. Otherwise the cost stays 0.
            catalogued_model = self._current.catalog.find_upstream(
                judge.backend, judge.upstream_model
            )
            if catalogued_model is not None:
                pricing = catalogued_model.pricing_at(now)
                used.cost_picousd = sum(cost_of(pricing, usage, images=0).values())
            used.reported_cost_picousd = reported_cost_picousd
        self._add(used)

    def _add(self, used: JudgeUsage) -> None:
        key = (used.organization_id, used.day, used.backend, used.model)
        existing = self._unwritten.setdefault(key, used)
        if existing is not used:
            existing.add(used)

    async def write(self) -> None:
        """What fails stays for the next write."""
        unwritten, self._unwritten = list(self._unwritten.values()), {}
        try:
            while unwritten:
                async with self._database.transaction() as connection:
                    await rollups.add_judge_usage(connection, unwritten[-_ROWS_PER_TRANSACTION:])
                del unwritten[-_ROWS_PER_TRANSACTION:]
        finally:
            for used in unwritten:
                self._add(used)

    async def drain(self) -> None:
        try:
            await self.write()
        except TollkeeperError as exc:
            _log.warning("the judge's usage could not be written", reason=exc.message)

    async def judge_usage(
        self, organization_id: OrganizationId, days: DayRange
    ) -> list[JudgeUsage]:
        """By backend and model."""
        async with self._database.autocommit(organization_id) as connection:
            rows = await sums.read(
                connection,
                sums.USAGE,
                days,
                {"organization_id": organization_id},
                by=("backend", "model"),
                add=("first_day", *sums.USAGE_SUMS),
            )
        return [
            JudgeUsage(organization_id, day, backend, model.removeprefix("judge/"), *used)
            for backend, model, day, *used in rows
        ]
