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
        async with self._database.transaction() as connection:
            decision = await take_from_rate(
                connection, caller.organization_id, caller.project_id, self._limits
            )
        if decision.refusal is not None:
            self._admission.note_refusal(caller.project_id, decision)
            raise refusal_error(decision)
        deadline = asyncio.get_running_loop().time() + TOKENIZER_TIMEOUT_S
        counted = await self._ask_backend(call, deadline)
        if counted is None:
            return Counted((await measure(call.prompt)).guess(), estimated=True)
        return Counted(counted, estimated=False)

    async def require_admissible(self, call: Call) -> None:
        """Refuses a call that cannot be admitted, before a tokenizer works for it."""
        if backend_for(call.model, self._backends).counts_tokens:
            await self._admissibility.require(call)

    async def counted_tokens(self, call: Call, deadline: float) -> int | None:
        """The backend's own count for a request that becomes a call, which takes from the rate limit
        itself; None where the backend does not count."""
        return await self._ask_backend(call, deadline)

    async def _ask_backend(self, call: Call, deadline: float) -> int | None:
        backend = backend_for(call.model, self._backends)
        return await backend.count_prompt_tokens(call, deadline=deadline)
