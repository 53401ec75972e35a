"""A backend that's declared but can't be used. Every call fails with its name and the reason."""

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.inference import Call
from tollkeeper.core.port import AnswerReceiver, BackendHealth


class AbsentBackend:
    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    async def answer(self, call: Call, receiver: AnswerReceiver, *, deadline: float) -> None:
        raise Unavailable(f"The backend {self.name} is unavailable. {self._reason}")

    counts_tokens = counts_media = False

    def prompts_sent(self, call: Call) -> int:
        return 1

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        return None

    def health(self) -> BackendHealth:
        return BackendHealth(self.name, ready=False, detail=self._reason, replicas={})

    async def start(self) -> None: ...

    async def close(self) -> None: ...
