"""Tests a backend with real requests, for operators. The calls belong to no tenant, so they aren't
in the ledger, but the provider charges for them: each result has its cost."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import uuid4

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.inference import Batch, Call, Delta
from tollkeeper.core.metering import Meter
from tollkeeper.core.port import Backend, EventCollector
from tollkeeper.core.pricing import cost_of
from tollkeeper.core.prompt import FunctionTool, Prompt, Role, Text, Turn
from tollkeeper.core.prompt_size import measure_prompt
from tollkeeper.core.runtime.clock import Clock, unix_now

# Enough for a word or a tool call, and the reasoning that some models always write.
_OUTPUT_TOKENS_MAX = 512
_PROMPT_TEXT = "Reply with the single word: hello"
_TOOL_PROMPT_TEXT = "What is the weather in Paris? Use the tool."
_TOOL = FunctionTool(
    name="weather",
    description="The weather of a place.",
    parameters={
        "type": "object",
        "properties": {"place": {"type": "string"}},
        "required": ["place"],
    },
)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """`worked` is None if the model or backend doesn't offer the feature."""

    check: str
    worked: bool | None
    detail: str
    cost_picousd: int = 0


class BackendTrial:
    def __init__(
        self, backend: Backend, model: Model, *, deadline_s: float, clock: Clock = unix_now
    ) -> None:
        self._backend = backend
        self._model = model
        self._deadline_s = deadline_s
        self._clock = clock

    async def results(self) -> AsyncIterator[TrialResult]:
        yield await self._answer("answer", _prompt(_PROMPT_TEXT), streamed=False)
        yield await self._answer("stream", _prompt(_PROMPT_TEXT), streamed=True)
        if Feature.TOOLS in self._model.supported_features:
            yield await self._answer("tools", _prompt(_TOOL_PROMPT_TEXT, _TOOL), streamed=False)
        else:
            yield TrialResult("tools", None, "the model does not declare tools")
        yield await self._count()

    async def _answer(self, check: str, prompt: Prompt, *, streamed: bool) -> TrialResult:
        call = self._call(prompt, streamed=streamed)
        meter = Meter(call, measure_prompt(prompt).bound(self._model))
        answer = EventCollector()
        failure: TollkeeperError | None = None
        try:
            await self._backend.answer(call, answer, deadline=self._deadline())
        except TollkeeperError as exc:
            failure = exc
        meter.count(answer.events)
        return self._result(check, meter, _names_of_called_tools(answer.events), failure)

    def _result(
        self, check: str, meter: Meter, called_tools: set[str], failure: TollkeeperError | None
    ) -> TrialResult:
        if failure is not None and not meter.has_begun and meter.usage is None:
            charged = " The request may have been charged." if failure.charged else ""
            return TrialResult(check, False, f"{failure.message}{charged}")
        used = meter.charge()
        pricing = self._model.pricing_at(self._clock())
        cost = sum(cost_of(pricing, used, images=0).values())
        source = "counted by the gateway" if used.estimated else "reported by the backend"
        detail = (
            f"{used.prompt_tokens} prompt and {used.completion_tokens} completion tokens, {source}"
        )
        if failure is not None:
            return TrialResult(check, False, f"{failure.message} {detail}", cost)
        if check == "tools" and _TOOL.name not in called_tools:
            return TrialResult(check, False, f"the model did not call the tool; {detail}", cost)
        return TrialResult(check, True, f"finish {meter.finish}; {detail}", cost)

    async def _count(self) -> TrialResult:
        if not self._backend.counts_tokens:
            return TrialResult("count", None, "the backend does not count tokens")
        call = self._call(_prompt(_PROMPT_TEXT), streamed=False)
        count = await self._backend.count_prompt_tokens(call, deadline=self._deadline())
        if count is None:
            return TrialResult("count", False, "the backend returned no count")
        return TrialResult("count", True, f"{count} tokens")

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._deadline_s

    def _call(self, prompt: Prompt, *, streamed: bool) -> Call:
        return Call(
            request_id=str(uuid4()),
            organization_id=OrganizationId(uuid4()),
            project_id=ProjectId(uuid4()),
            key_id=KeyId(uuid4()),
            model=self._model,
            choices=1,
            output_tokens_max=min(_OUTPUT_TOKENS_MAX, self._model.max_output_length),
            output_limit_field="max_tokens",
            streamed=streamed,
            prompt=prompt,
        )


def _prompt(text: str, *tools: FunctionTool) -> Prompt:
    return Prompt(turns=(Turn(Role.USER, (Text(text),), place="trial"),), tools=tools)


def _names_of_called_tools(batch: Batch) -> set[str]:
    deltas = (event for event in batch if isinstance(event, Delta))
    return {piece.name for delta in deltas for piece in delta.tool_calls if piece.name}
