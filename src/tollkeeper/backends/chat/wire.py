"""Implements `Wire`, the interface of a backend protocol, for the chat protocol."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from tollkeeper.backends.answer_json import (
    MalformedAnswer,
    decode_usage_only,
    error_record,
    usage_means_charge,
)
from tollkeeper.backends.chat.answer import (
    Completion,
    decode_completion,
    delta_of_completion,
    has_free_finish,
    has_output,
    opened,
    usage_report,
)
from tollkeeper.backends.chat.dialect import OPENAI_DIALECT, ChatDialect
from tollkeeper.backends.chat.request import encode_request
from tollkeeper.backends.chat.stream import AnswerStream
from tollkeeper.backends.config import NO_BILLING_RULES, BillingRules
from tollkeeper.backends.refusals import refusal_record
from tollkeeper.backends.transport.framing import Framing
from tollkeeper.backends.wire import AnswerReader, WholeAnswer
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import BackendFailed, TollkeeperError
from tollkeeper.domain.inference import Call, Event, UsageReport


class ChatWire:
    """Implements `Wire`."""

    headers: Mapping[str, str] = {}
    framing = Framing.SERVER_SENT_EVENTS

    def __init__(
        self,
        dialect: ChatDialect = OPENAI_DIALECT,
        billing_rules: BillingRules = NO_BILLING_RULES,
    ) -> None:
        self._dialect = dialect
        self._billing_rules = billing_rules

    def path_for(self, model: Model, *, stream: bool) -> str:
        return "chat/completions"

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        return encode_request(call, stream=stream, extra=extra, dialect=self._dialect)

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        completion = decode_completion(body)
        record = error_record(completion.error)
        is_free = has_free_finish(completion, self._billing_rules)
        if record is not None or is_free:
            refusal = refusal_record(record, secrets=secrets)
            refusal.tokens_are_free = is_free
            return _failed_answer(call, completion, refusal)
        events: list[Event] = [opened(completion)]
        seen_choices: set[int] = set()
        unfinished = call.choices
        for choice in completion.choices or ():
            delta = delta_of_completion(choice)
            if 0 <= delta.choice < call.choices and delta.choice not in seen_choices:
                seen_choices.add(delta.choice)
                events.append(delta)
                unfinished -= delta.finish is not None
        if not seen_choices:
            raise MalformedAnswer("it has no choice")
        report = usage_report(completion.usage, completion.service_tier)
        if report is not None:
            events.append(report)
        if unfinished == 0:
            return WholeAnswer(events)
        return WholeAnswer(
            events, BackendFailed("The backend did not finish every choice.", charged=True)
        )

    def read_usage(self, body: bytes) -> UsageReport | None:
        usage_only = decode_usage_only(body)
        return usage_report(usage_only.usage, usage_only.tier)

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader:
        return AnswerStream(call, secrets=secrets, billing_rules=self._billing_rules)


def _failed_answer(call: Call, completion: Completion, refusal: TollkeeperError) -> WholeAnswer:
    """Reads an answer that contains an error. If the answer also contains output or usage, returns
    them together with the error, because the call is then charged. Otherwise raises the refusal."""
    deltas: dict[int, Event] = {}
    for choice in completion.choices or ():
        if choice.message is not None and 0 <= choice.index < call.choices:
            delta = delta_of_completion(choice)
            if has_output(delta):
                deltas.setdefault(delta.choice, replace(delta, finish=None))
    events: list[Event] = [opened(completion), *deltas.values()]
    report = usage_report(completion.usage, completion.service_tier)
    if report is not None and usage_means_charge(report):
        events.append(report)
    if len(events) == 1:
        raise refusal
    failure = refusal
    if deltas:
        failure = BackendFailed("The backend failed while it was answering.")
        failure.tokens_are_free = refusal.tokens_are_free
    failure.charged = True
    return WholeAnswer(events, failure)
