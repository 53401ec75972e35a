"""Counts the tokens of a prompt: the backend counts where it can, else the gateway estimates."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from tollkeeper.backends.fallback import backend_for
from tollkeeper.backends.port import Backend
from tollkeeper.domain.access import ProjectCaller
from tollkeeper.domain.admission import ProjectLimits
from tollkeeper.domain.inference import Call
from tollkeeper.services.calls.measuring import measure
from tollkeeper.services.ledger.admissibility import Admissibility
from tollkeeper.services.ledger.admission import Admission, refusal_error
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
    ) -> None:
        self._database = database
        self._backends = backends
        self._limits = limits
        self._admissibility = admissibility
        self._admission = admission

    async def count(self, caller: ProjectCaller, call: Call) -> Counted:
        """Takes one request from the project's rate limit. There is no hold, no charge and no
        activity record."""
        async with self._database.transaction(caller.organization_id) as connection:
            decision = await take_from_rate(
                connection, caller.organization_id, caller.project_id, self._limits
            )
        if decision.refusal is not None:
            self._admission.note_refusal(caller.project_id, decision)
            raise refusal_error(decision)
        deadline = asyncio.get_running_loop().time() + TOKENIZER_TIMEOUT_S
        counted = await self._ask_backend(call, deadline)
        if counted is None:
            return Counted((await measure(call)).guess(), estimated=True)
        return Counted(counted, estimated=False)

    async def is_counted(self, call: Call) -> bool:
        """Whether the backend counts, and the call may be admitted: no tokenizer works for a call that
        cannot be. Raises what admission would raise by the key, the project and the rate."""
        backend = backend_for(call.model, self._backends)
        return backend.counts_tokens and await self._admissibility.may_be_paid(call)

    async def counted_tokens(self, call: Call, deadline: float) -> int | None:
        """The backend's own count for a request that becomes a call, which takes from the rate limit
        itself; None where the backend does not count."""
        return await self._ask_backend(call, deadline)

    async def _ask_backend(self, call: Call, deadline: float) -> int | None:
        backend = backend_for(call.model, self._backends)
        return await backend.count_prompt_tokens(call, deadline=deadline)
