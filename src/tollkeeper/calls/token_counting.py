"""Counts a prompt's tokens with the backend's tokenizer, or else estimates them. If an enforcing
policy must judge the request, the backend isn't asked, because it would see the prompt too
early."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from tollkeeper.calls.admission import Admission, measure
from tollkeeper.core.access import ProjectCaller
from tollkeeper.core.inference import Call
from tollkeeper.core.port import Backend
from tollkeeper.database.database import Database
from tollkeeper.money.holds.admissibility import Admissibility
from tollkeeper.money.holds.refusal_errors import refusal_error
from tollkeeper.money.holds.rule import Decision, DefaultLimits, Refusal
from tollkeeper.money.holds.throttle import take_from_rate
from tollkeeper.policies.policies import Policies
from tollkeeper.policies.policy import Direction
from tollkeeper.providers.fallback import backend_for

TOKENIZER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Counted:
    tokens: int
    estimated: bool


class TokenCounting:
    def __init__(
        self,
        database: Database,
        backends: Mapping[str, Backend],
        limits: DefaultLimits,
        admissibility: Admissibility,
        admission: Admission,
        policies: Policies,
    ) -> None:
        self._database = database
        self._backends = backends
        self._limits = limits
        self._admissibility = admissibility
        self._admission = admission
        self._policies = policies

    async def count(self, caller: ProjectCaller, call: Call) -> Counted:
        """For a client. Takes from the project's rate limit, but has no hold, charge or activity
        record."""
        async with self._database.transaction(caller.organization_id) as connection:
            decision = await take_from_rate(
                connection, caller.organization_id, caller.project_id, self._limits
            )
        if decision.refusal is not None:
            self._admission.standing_refusals.note(caller.project_id, decision)
            raise refusal_error(decision)
        if not caller.may_use(call.model.id):
            raise refusal_error(Decision(Refusal.MODEL_NOT_ALLOWED))
        counted = None
        if await self._may_send_to_tokenizer(call):
            counted = await self.counted_tokens(call, tokenizer_deadline())
        if counted is None:
            return Counted((await measure(call)).guess(), estimated=True)
        return Counted(counted, estimated=False)

    async def should_count(self, call: Call) -> bool:
        """False without a tokenizer, if a policy must judge first, or if the organization can't pay
        anyway. Raises what admission would about key, project, model and rate limit."""
        return await self._may_send_to_tokenizer(call) and await self._admissibility.may_be_paid(
            call
        )

    async def counted_tokens(self, call: Call, deadline: float) -> int | None:
        """None if there's no count by the deadline."""
        backend = backend_for(call.model, self._backends)
        return await backend.count_prompt_tokens(call, deadline=deadline)

    async def _may_send_to_tokenizer(self, call: Call) -> bool:
        if not backend_for(call.model, self._backends).counts_tokens:
            return False
        policies = await self._policies.applying(call)
        return not any(policy.enforces(Direction.REQUEST) for policy in policies)


def tokenizer_deadline() -> float:
    """Of the event loop's clock."""
    return asyncio.get_running_loop().time() + TOKENIZER_TIMEOUT_S
