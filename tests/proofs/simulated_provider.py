"""A simulated provider that a seed controls: it uses several dialects, fails in many ways, and stores
its bills.

Its answers go through the real decoder of chat streams and the real table of statuses, so a mistake in
either of them changes the ledger.
"""

import json
import random
from asyncio import sleep
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.support.plain_backend import PlainBackend
from tollkeeper.core.inference import Call
from tollkeeper.core.port import AnswerReceiver
from tollkeeper.providers.chat.wire import ChatWire
from tollkeeper.providers.failures import domain_error
from tollkeeper.providers.refusals import refusal
from tollkeeper.providers.transport.http1 import HttpFailure

REFUSALS = (400, 429, 500, 503)
PROXY_TIMEOUTS = (408, 502, 504, 524)
# Prompts with more tokens than this have higher prices.
LONG_PROMPT = 100
# The service tiers of answers. The model of the histories declares only some of them.
TIERS = (None, "default", "flex", "priority", "scale")


class Manner(StrEnum):
    """The provider's behaviour for one answer."""

    REFUSED = "refused"
    PROXY_TIMEOUT = "proxy timeout"
    CUT_AFTER_HEAD = "cut after the head"
    CUT_STREAM = "stream cut after output"
    PLAIN = "one report"
    CUMULATIVE = "cumulative reports"
    ADDITIVE = "reasoning beside the completion"
    SPLIT_EARLY = "cache split in an earlier report"
    NO_USAGE = "no usage"


# The provider generates nothing and bills nothing.
FREE = (Manner.REFUSED,)
# The provider may have generated an answer, but the gateway gets nothing of it.
UNKNOWN = (Manner.PROXY_TIMEOUT, Manner.CUT_AFTER_HEAD)
# The provider generates output, but reports no usage.
UNTOLD = (Manner.CUT_STREAM, Manner.NO_USAGE)


@dataclass(frozen=True, slots=True)
class Bill:
    """The provider's bill for one answer, in tokens."""

    manner: Manner
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    tier: str | None = None


@dataclass
class SimulatedProvider(PlainBackend):
    rng: random.Random
    name: str = "cluster"
    # By request id. The list has one bill for each answer that the gateway asked for.
    bills: dict[str, list[Bill]] = field(default_factory=dict)

    async def answer(self, call: Call, receiver: AnswerReceiver, *, deadline: float) -> None:
        # There is no connection to wait for, so the call counts as sent.
        receiver.sent = True
        bill = self._bill()
        self.bills.setdefault(call.request_id, []).append(bill)
        await sleep(self.rng.random())
        if bill.manner is Manner.REFUSED:
            raise refusal(self.rng.choice(REFUSALS), b"", retry_after=None, secrets=())
        if bill.manner is Manner.PROXY_TIMEOUT:
            raise refusal(self.rng.choice(PROXY_TIMEOUTS), b"", retry_after=None, secrets=())
        if bill.manner is Manner.CUT_AFTER_HEAD:
            raise domain_error(HttpFailure(), charged=True)
        receiver.replica = "replica"
        reader = ChatWire().open_stream(call, secrets=())
        for record in _records(bill):
            await sleep(self.rng.random() * 0.2)
            payload = record.encode() if isinstance(record, str) else json.dumps(record).encode()
            events = reader.read([payload])
            if events:
                await receiver.take(events)
            if reader.failure is not None:
                raise reader.failure
        if bill.manner is Manner.CUT_STREAM:
            raise domain_error(HttpFailure(), charged=True)

    def _bill(self) -> Bill:
        rng = self.rng
        prompt = rng.choice((1, 7, LONG_PROMPT, LONG_PROMPT + 1, 130))
        return Bill(
            manner=rng.choice((*Manner, Manner.PLAIN, Manner.CUMULATIVE, Manner.ADDITIVE)),
            prompt=prompt,
            cached=rng.choice((0, 0, prompt // 2, prompt)),
            completion=rng.randint(3, 12),
            tier=rng.choice(TIERS),
        )


def _records(bill: Bill) -> list[Any]:
    """Returns the records of the stream: three pieces and the end, with the usage reports of the dialect."""
    reports = _reports(bill)
    records: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": f"{at} "}}], "usage": reports[at]}
        for at in range(3)
    ]
    if bill.tier is not None:
        records[0]["service_tier"] = bill.tier
    if bill.manner is Manner.CUT_STREAM:
        return records
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    last = [] if reports[3] is None else [{"choices": [], "usage": reports[3]}]
    return [*records, end, *last, "[DONE]"]


def _reports(bill: Bill) -> list[dict[str, Any] | None]:
    """Returns a usage report or None for each of the three pieces and for the end. If there are reports,
    the gateway can derive the bill from them."""
    final = {
        "prompt_tokens": bill.prompt,
        "completion_tokens": bill.completion,
        "total_tokens": bill.prompt + bill.completion,
        "prompt_tokens_details": {"cached_tokens": bill.cached},
    }
    match bill.manner:
        case Manner.CUT_STREAM | Manner.NO_USAGE:
            return [None] * 4
        case Manner.CUMULATIVE:
            # As with Gemini, the first reports have a higher prompt count than the last report.
            running = [
                {"prompt_tokens": bill.prompt + 2, "completion_tokens": at, "total_tokens": None}
                for at in range(3)
            ]
            return [*running, final]
        case Manner.ADDITIVE:
            told = {**final, "completion_tokens": 1}
            return [None, None, None, told]
        case Manner.SPLIT_EARLY:
            without = {name: final[name] for name in final if name != "prompt_tokens_details"}
            return [final, None, None, without]
    return [None, None, None, final]
