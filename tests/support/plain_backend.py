"""Contains the parts that backends in tests share: everything except `answer`."""

from tollkeeper.core.inference import Call
from tollkeeper.core.port import BackendHealth


class PlainBackend:
    """Has no tokenizer and sends each prompt once. Starts and stops without work."""

    name = "plain"
    counts_tokens = counts_media = False

    def prompts_sent(self, call: Call) -> int:
        return 1

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        return None

    def health(self) -> BackendHealth:
        return BackendHealth(self.name, True, "", {})

    async def start(self) -> None: ...

    async def close(self) -> None: ...
