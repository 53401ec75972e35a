"""The wire of the chat protocol."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from tollkeeper.core.errors import BackendFailed, TollkeeperError
from tollkeeper.core.inference import Call, Event, Finish, Opened, UsageReport
from tollkeeper.core.prompt import FreeObject
from tollkeeper.providers.answer_json import (
    MalformedAnswer,
    decode_usage_only,
    decode_whole,
    error_record,
    value_or_none,
)
from tollkeeper.providers.chat.answer import (
    Completion,
    completion_decoder,
    delta_of,
    has_free_finish,
    has_output,
    usage_report,
    with_asked_alternatives,
)
from tollkeeper.providers.chat.dialect import OPENAI_DIALECT, ChatDialect
from tollkeeper.providers.chat.request import encoded_fields
from tollkeeper.providers.chat.stream import ChatStreamReader
from tollkeeper.providers.config import NO_BILLING_RULES, BillingRules
from tollkeeper.providers.refusals import refusal_record
from tollkeeper.providers.request_fields import add_options
from tollkeeper.providers.transport.framing import Framing
from tollkeeper.providers.usage_reports import usage_means_charge
from tollkeeper.providers.wire import AnswerReader, WholeAnswer

_encode = msgspec.json.Encoder().encode


class ChatWire:
    headers: Mapping[str, str] = {}
    framing = Framing.SERVER_SENT_EVENTS

    def __init__(
        self,
        dialect: ChatDialect = OPENAI_DIALECT,
        billing_rules: BillingRules = NO_BILLING_RULES,
    ) -> None:
        self._dialect = dialect
        self._billing_rules = billing_rules
        self._may_be_free = billing_rules.free_finish is not None

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        return "chat/completions"

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        """A stream also asks for usage, which the price is computed from, unless the dialect says
        no (`include_usage`)."""
        model = call.model
        prompt = call.prompt
        dialect = self._dialect
        body: FreeObject = encoded_fields(prompt) if prompt.written is None else {**prompt.written}
        if prompt.reasoning is not None and prompt.reasoning.effort is not None:
            body["reasoning_effort"] = prompt.reasoning.effort
        if prompt.logprobs is not None:
            body["logprobs"] = True
            if prompt.logprobs.top is not None:
                body["top_logprobs"] = prompt.logprobs.top
        caching = prompt.caching
        if caching.key is not None:
            body["prompt_cache_key"] = caching.key
        if caching.salt is not None:
            body[model.cache_salt_field or "cache_salt"] = caching.salt
        if prompt.options:
            add_options(body, model, prompt.options)
        if dialect is not OPENAI_DIALECT:
            dialect.change(body)
        if extra:
            body.update(extra)
        body["model"] = model.upstream_model
        body[dialect.output_limit_field or call.output_limit_field] = call.output_tokens_max
        body["stream"] = stream
        if call.choices > 1:
            body["n"] = call.choices
        if stream and dialect.include_usage:
            body["stream_options"] = {"include_usage": True}
        return _encode(body)

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        completion = decode_whole(completion_decoder, body)
        tier = completion.service_tier
        logprobs = completion.prompt_logprobs
        opened = Opened(
            completion.system_fingerprint, tier, value_or_none(logprobs) if logprobs else None
        )
        report = usage_report(completion.usage, tier, self._billing_rules)
        if completion.error or self._may_be_free:
            error = error_record(completion.error)
            is_free = has_free_finish(completion, self._billing_rules, call.choices)
            if error is not None or is_free:
                refusal = refusal_record(error, secrets=secrets)
                refusal.tokens_are_free = is_free
                return _failed_answer(call, completion, opened, report, refusal)
        deltas: dict[int, Event] = {}
        for choice in completion.choices or ():
            index = choice.index
            # A whole answer's choices have ended, even without a reason.
            choice.finish_reason = choice.finish_reason or Finish.UNSTATED
            delta = with_asked_alternatives(delta_of(choice), call)
            if 0 <= index < call.choices and index not in deltas:
                deltas[index] = delta
        if not deltas:
            raise MalformedAnswer("it has no choice")
        events: list[Event] = [opened, *deltas.values()]
        if report is not None:
            events.append(report)
        if len(deltas) == call.choices:
            return WholeAnswer(events)
        return WholeAnswer(
            events, BackendFailed("The backend did not finish every choice.", charged=True)
        )

    def read_usage(self, body: bytes) -> UsageReport | None:
        usage_only = decode_usage_only(body)
        return usage_report(usage_only.usage, usage_only.tier, self._billing_rules)

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader:
        return ChatStreamReader(call, secrets=secrets, billing_rules=self._billing_rules)


def _failed_answer(
    call: Call,
    completion: Completion,
    opened: Opened,
    report: UsageReport | None,
    refusal: TollkeeperError,
) -> WholeAnswer:
    """With output or usage, the call is charged, so they're returned with the error."""
    deltas: dict[int, Event] = {}
    for choice in completion.choices or ():
        if choice.message is not None and 0 <= choice.index < call.choices:
            delta = delta_of(choice)
            if has_output(delta):
                deltas.setdefault(delta.choice, replace(delta, finish=None))
    events: list[Event] = [opened, *deltas.values()]
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
