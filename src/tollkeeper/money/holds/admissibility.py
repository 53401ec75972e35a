"""Finds calls that admission would certainly reject, before expensive work is done for them."""

from tollkeeper.core.inference import Call
from tollkeeper.core.pricing import Bounds, hold_picousd
from tollkeeper.core.runtime.clock import Clock, unix_now
from tollkeeper.database.database import Database
from tollkeeper.money.holds.admissibility_store import could_admit
from tollkeeper.money.holds.refusal_errors import refusal_error
from tollkeeper.money.holds.rule import DefaultLimits, Refusal


class Admissibility:
    def __init__(self, database: Database, limits: DefaultLimits, clock: Clock = unix_now) -> None:
        self._database = database
        self._limits = limits
        self._clock = clock

    async def may_be_paid(self, call: Call) -> bool:
        """Without the whole hold: False if calls are stopped, or the credit doesn't even cover the
        output; admission's error then names the whole hold. Raises admission's errors about key,
        project, model and rate. Reserves and counts nothing, so admission may still reject the
        call."""
        output_only = Bounds(
            prompt_tokens=0,
            choices=call.choices,
            output_tokens_each=call.output_tokens_held,
            images=0,
            service_tier=call.asked_service_tier,
        )
        pricing = call.model.pricing_at(self._clock())
        async with self._database.autocommit(call.organization_id) as connection:
            decision = await could_admit(
                connection,
                organization_id=call.organization_id,
                project_id=call.project_id,
                key_id=call.key_id,
                model_id=call.model.id,
                cost_picousd_min=hold_picousd(pricing, output_only),
                limits=self._limits,
            )
        if decision.refusal in (Refusal.CREDIT, Refusal.OVERAGE):
            return False
        if decision.refusal is not None:
            raise refusal_error(decision)
        return True
