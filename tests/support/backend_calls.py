"""Creates calls for tests of backends, and makes them."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.catalog import Model
from tollkeeper.core.declared_prices import pricing_from_declared
from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.inference import Batch, Call, Delta, Event, Opened, UsageReport
from tollkeeper.core.metering import Meter
from tollkeeper.core.port import Backend, EventCollector
from tollkeeper.core.prompt import CachingWish, Option, Prompt
from tollkeeper.core.usage import Usage, normalised
from tollkeeper.faces.chat.prompt import read_prompt
from tollkeeper.faces.wire.chat import ChatRequest
from tollkeeper.providers.config import BackendConfig
from tollkeeper.providers.routing import RoutedBackend
from tollkeeper.setup.backends import backend_config
from tollkeeper.setup.settings import BackendSettings

KEY = "upstream-secret-key"
DEADLINE_S = 10.0
# The tokens of each prompt of a call that `make` has made, by the gateway's own count.
PROMPT_BOUND = 100

MODEL = Model(
    id="example/chat",
    backend="cluster",
    upstream_model="upstream-model",
    owned_by="example",
    name="Chat",
    display_name="Chat",
    created=1767225600,
    context_length=32768,
    max_output_length=8192,
    input_modalities=("text",),
    output_modalities=("text",),
    quantization="bf16",
    supported_sampling_parameters=(),
    supported_features=(),
    sampling_limits={},
    sampling_limits_revision="1",
    required_checks=(),
    is_ready=True,
    pricing=pricing_from_declared({}, param="pricing"),
    options={},
)


def make_call(
    *,
    streamed: bool = False,
    choices: int = 1,
    output_tokens_max: int = 1024,
    affinity: bytes | None = None,
    catalog_model: Model = MODEL,
    **fields: Any,
) -> Call:
    """Returns a call with these chat `fields`. Fields that chat does not define become model options."""
    prompt = make_prompt(catalog_model=catalog_model, **fields)
    paths = {option.name: option.name for option in prompt.options}
    return Call(
        request_id=str(uuid.uuid4()),
        organization_id=OrganizationId(uuid.uuid4()),
        project_id=ProjectId(uuid.uuid4()),
        key_id=KeyId(uuid.uuid4()),
        model=replace(catalog_model, options={**paths, **catalog_model.options}),
        choices=choices,
        output_tokens_max=output_tokens_max,
        output_limit_field="max_completion_tokens",
        streamed=streamed,
        prompt=prompt,
        affinity=affinity,
    )


def make_prompt(*, catalog_model: Model = MODEL, **fields: Any) -> Prompt:
    """Returns the prompt of a chat request with these fields."""
    known = ChatRequest.__struct_fields__
    chat = {name: value for name, value in fields.items() if name in known}
    body = {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}], **chat}
    raw = msgspec.json.encode(body)
    caching = CachingWish(chat.get("prompt_cache_key"), chat.get("cache_salt"))
    written = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    chat_request = msgspec.json.decode(raw, type=ChatRequest)
    prompt = read_prompt(chat_request, written, catalog_model, caching)
    more = [Option(name, value, name) for name, value in fields.items() if name not in known]
    return msgspec.structs.replace(prompt, options=(*prompt.options, *more))


def make_config(*urls: str, **changes: Any) -> BackendConfig:
    """Returns the default configuration of a backend with these replicas, with the given changes."""
    declared = BackendSettings(name="cluster", kind="openai", urls=("http://unused/v1",))
    return replace(backend_config(declared, None), **{"urls": urls, "api_key": KEY, **changes})


@asynccontextmanager
async def routed(*urls: str, **settings: Any) -> AsyncIterator[RoutedBackend]:
    """Starts a backend with these replicas, and closes it at the end."""
    backend = RoutedBackend(make_config(*urls, **settings))
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


class Outcome:
    """Records the result of a call: its events in order, its meter, and the error that ended it."""

    meter: Meter

    def __init__(self) -> None:
        self.accepted = False
        self.replica: str | None = None
        self.events: list[Event] = []
        self.batches: list[Sequence[Event]] = []
        self.error: TollkeeperError | None = None

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.events if isinstance(event, Delta)]

    @property
    def reports(self) -> list[UsageReport]:
        return [event for event in self.events if isinstance(event, UsageReport)]

    @property
    def usage(self) -> Usage | None:
        assert len(self.reports) == 1
        return usage_in(self.reports[0])

    def text(self, choice: int = 0) -> str:
        return "".join(delta.text or "" for delta in self.deltas if delta.choice == choice)

    def check_complete(self, choices: int = 1) -> None:
        """Checks that the answer began with its only `Opened` event, and that every choice ended once."""
        assert self.error is None
        opened = [number for number, event in enumerate(self.events) if isinstance(event, Opened)]
        assert opened == [0]
        ended = [delta.choice for delta in self.deltas if delta.finish is not None]
        assert sorted(ended) == list(range(choices))


def usage_in(report: UsageReport) -> Usage | None:
    return None if report.usage is None else normalised(report.usage)


def readable(events: Sequence[Event]) -> list[Event | Usage | None]:
    """Returns the events, with the usage itself instead of each usage report."""
    return [usage_in(event) if isinstance(event, UsageReport) else event for event in events]


class _Recorder(EventCollector):
    """Receives an answer, meters it as the gateway does, and also stores its batches."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.batches: list[Sequence[Event]] = []
        self.meter = Meter(call, PROMPT_BOUND * call.choices, prompts=call.choices)

    async def take(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.events += batch
        self.meter.count(batch)

    def set_parts(self, parts: Sequence[Meter]) -> None:
        self.meter.set_parts(parts)


async def make(backend: Backend, call: Call, *, deadline_s: float = DEADLINE_S) -> Outcome:
    """Makes the call, and also returns normally if the call fails."""
    outcome, receiver = Outcome(), _Recorder(call)
    deadline = asyncio.get_running_loop().time() + deadline_s
    try:
        await backend.answer(call, receiver, deadline=deadline)
    except TollkeeperError as error:
        outcome.error = error
    outcome.accepted = receiver.replica is not None
    outcome.replica = receiver.replica
    outcome.batches, outcome.events = receiver.batches, receiver.events
    outcome.meter = receiver.meter
    return outcome


class OpenedAnswer(EventCollector):
    """Receives an answer. The backend waits after each batch until the test has read the batch."""

    task: asyncio.Future[None]

    def __init__(self) -> None:
        super().__init__()
        self._batches: asyncio.Queue[Sequence[Event]] = asyncio.Queue()
        self._asked = asyncio.Semaphore(0)
        self.begun = asyncio.Event()

    async def take(self, batch: Batch) -> None:
        self.begun.set()
        self._batches.put_nowait(batch)
        await self._asked.acquire()

    async def next_batch(self) -> Sequence[Event]:
        """Returns the next batch, and lets the backend read on."""
        batch = await self._batches.get()
        self._asked.release()
        return batch


@asynccontextmanager
async def answering(
    backend: Backend, call: Call, *, deadline_s: float = DEADLINE_S
) -> AsyncIterator[OpenedAnswer]:
    """Makes the call, waits until its answer has begun, and leaves it at the end of the block."""
    answer = OpenedAnswer()
    deadline = asyncio.get_running_loop().time() + deadline_s
    task = answer.task = asyncio.ensure_future(backend.answer(call, answer, deadline=deadline))
    begun = asyncio.ensure_future(answer.begun.wait())
    try:
        await asyncio.wait([task, begun], return_when=asyncio.FIRST_COMPLETED)
        yield answer
    finally:
        begun.cancel()
        task.cancel()
        await asyncio.gather(task, begun, return_exceptions=True)


class _SkippingClock:
    """Returns the time of an event loop plus `ahead_s`."""

    def __init__(self, measured: Callable[[], float]) -> None:
        self._measured = measured
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return self._measured() + self.ahead_s


def skip_time(seconds: float) -> None:
    """Moves the running loop's clock ahead for good: moving it back would delay every timer."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop.time, _SkippingClock):
        loop.time = _SkippingClock(loop.time)  # type: ignore[method-assign]
    loop.time.ahead_s += seconds


async def until(condition: Callable[[], bool], *, within_s: float = 20.0) -> None:
    """Polls until the condition is true."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


def content_of(events: Sequence[Event]) -> dict[str, Any]:
    """Returns the content of an answer, joined from its events."""
    deltas = [event for event in events if isinstance(event, Delta)]
    calls: dict[int, list[str]] = {}
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        joined = calls.setdefault(piece.index, ["", "", ""])
        for at, text in enumerate((piece.id, piece.name, piece.arguments)):
            joined[at] += text or ""
    return {
        "text": "".join(delta.text or "" for delta in deltas),
        "reasoning": "".join(delta.reasoning or "" for delta in deltas),
        "sealed": [
            json.loads(delta.sealed_reasoning) for delta in deltas if delta.sealed_reasoning
        ],
        "calls": [(id_, name, json.loads(written)) for id_, name, written in calls.values()],
        "finish": [delta.finish for delta in deltas if delta.finish],
    }


def usages_of(events: Sequence[Event]) -> list[Usage]:
    """Returns the usage of every report that contains one."""
    return [found for found in readable(events) if isinstance(found, Usage)]
