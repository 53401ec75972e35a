"""Counts the tokens of a prompt: the backend counts if it can, else the gateway estimates.

Under an enforcing request policy the backend is not asked, because it would get the prompt before
the verdict.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from tollkeeper.backends.fallback import backend_for
from tollkeeper.backends.port import Backend
from tollkeeper.domain.access import ProjectCaller
from tollkeeper.domain.admission import Decision, ProjectLimits, Refusal
from tollkeeper.domain.inference import Call
from tollkeeper.domain.policy import Direction
from tollkeeper.services.calls.admission import Admission
from tollkeeper.services.calls.measuring import measure
from tollkeeper.services.ledger.admissibility import Admissibility
from tollkeeper.services.ledger.refusals import refusal_error
from tollkeeper.services.policies.policies import Policies
from tollkeeper.storage.database import Database
from tollkeeper.storage.throttle import take_from_rate

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
        limits: ProjectLimits,
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
        """Counts the tokens, and one request against the project's rate. There is no hold, no
        charge and no activity record."""
        async with self._database.transaction(caller.organization_id) as connection:
            decision = await take_from_rate(
                connection, caller.organization_id, caller.project_id, self._limits
            )
        if decision.refusal is not None:
            self._admission.note_refusal(caller.project_id, decision)
            raise refusal_error(decision)
        if not caller.may_use(call.model.id):
            raise refusal_error(Decision(Refusal.MODEL_NOT_ALLOWED))
        counted = None
        if await self._may_leave(call):
            counted = await self.counted_tokens(call, tokenizer_deadline())
        if counted is None:
            return Counted((await measure(call)).guess(), estimated=True)
        return Counted(counted, estimated=False)

    async def is_counted(self, call: Call) -> bool:
        """Tells whether the backend counts, no policy has to judge the prompt first, and the call
        could be admitted, because no tokenizer should work for a hopeless call. Raises admission's
        errors about the key, the project, the model and the rate."""
        return await self._may_leave(call) and await self._admissibility.may_be_paid(call)

    async def counted_tokens(self, call: Call, deadline: float) -> int | None:
        """Returns the backend's own count, or None if the backend does not count."""
        backend = backend_for(call.model, self._backends)
        return await backend.count_prompt_tokens(call, deadline=deadline)

    async def _may_leave(self, call: Call) -> bool:
        """Tells whether the backend counts and may get the prompt before a verdict."""
        if not backend_for(call.model, self._backends).counts_tokens:
            return False
        policies = await self._policies.applying(call)
        return not any(policy.enforces(Direction.REQUEST) for policy in policies)


def tokenizer_deadline() -> float:
    """Returns the deadline of a token count, as a time of the loop's clock."""
    return asyncio.get_running_loop().time() + TOKENIZER_TIMEOUT_S
