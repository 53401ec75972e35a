"""Counts a backend's answer, so that a call can be charged however it ends."""

from collections.abc import Iterable

import msgspec

from tollkeeper.domain.estimate import estimate_tokens
from tollkeeper.domain.inference import Call, Delta, Event, UsageReport
from tollkeeper.domain.pricing import Pricing, cost_of
from tollkeeper.domain.prompt import FreeObject
from tollkeeper.domain.usage import ReportedUsage, Usage, merged, readings

# Pieces of text are collected and counted together. Each piece takes its length plus
# `_ROOM_OF_A_PIECE` of this room.
_ROOM = 16_384
_ROOM_OF_A_PIECE = 32
# A report of more than this many contexts cannot be true.
_CONTEXTS_MAX = 16
# The tokens of an image in an answer without a report. No published model family takes more (GPT
# Image, high quality).
_TOKENS_PER_IMAGE = 6_240
# A report of more than this many searches for a completion cannot be true.
_SEARCHES_MAX = 10_000
# The backend's stated price agrees with ours if they differ by at most one part in this number.
_AGREEMENT = 100


class Charge(msgspec.Struct, frozen=True, gc=False):
    """Contains the usage to charge. `estimated` means that our own count replaced the backend's."""

    usage: Usage
    estimated: bool
    # The usage of each of several answers, if `usage` is their sum.
    parts: tuple[Usage, ...] = ()


class Meter(msgspec.Struct):
    """Counts one answer, and stores the last usage report of its backend."""

    call: Call
    # The limit of all prompts that are sent, how often one is sent, and how much of them may be
    # audio.
    prompt_tokens: int
    prompts: int = 1
    input_audio_tokens: int = 0
    # Whether our own count includes the whole prompt. If False, it only has a limit for media or
    # search results.
    prompt_is_counted: bool = True
    report: ReportedUsage | None = None
    # The last report that cannot be true.
    absurd_report: FreeObject | None = None
    finish: str | None = None
    # The service tier that the answer names before any report.
    service_tier: str | None = None
    # Whether a part of the answer has arrived, even if only its end: from then on the call is
    # charged.
    delivered: bool = False
    # Whether the answer has reasoning, of which the client may not see all.
    _reasons: bool = False
    _pieces: int = 0
    _counted_tokens: int = 0
    _images: int = 0
    _uncounted: list[str] = []
    _room: int = _ROOM
    # The usage of the last report, whether that report cannot be true, and whether both are out of
    # date.
    _usage: Usage | None = None
    _is_nonsense: bool = False
    _is_stale: bool = False

    def send_prompts(self, prompts: int) -> None:
        """Sets how often the prompt is sent, which may be less than was held."""
        self.prompt_tokens = self.prompt_tokens // self.prompts * prompts
        self.input_audio_tokens = self.input_audio_tokens // self.prompts * prompts
        self.prompts = prompts

    def count(self, batch: Iterable[Event]) -> None:
        for event in batch:
            if isinstance(event, Delta):
                self._count_delta(event)
            elif isinstance(event, UsageReport):
                self._take(event)
            elif event.service_tier:
                self.service_tier = event.service_tier
                self._is_stale = True

    @property
    def usage(self) -> Usage | None:
        """Returns the backend's own count; None if it has reported no usable one."""
        if self._is_stale:
            self._understand()
        return self._usage

    @property
    def reported_nonsense(self) -> bool:
        """Tells whether none of the backend's reports can be true, so that an operator has to look
        at it."""
        if self._is_stale:
            self._understand()
        return self._is_nonsense

    def _understand(self) -> None:
        """Interprets the last report. This happens when it is needed, not for each report of a
        stream."""
        self._is_stale = False
        report = self.report
        found = None if report is None else read_usage(self.call, report)
        if found is None:
            self._usage = None
            searches = 0 if report is None else report.web_searches or 0
            absurd = self.absurd_report is not None
            self._is_nonsense = absurd or not self._can_have_searched(searches)
            return
        self._is_nonsense = not self._can_be_true(found)
        if found.service_tier is None and self.service_tier is not None:
            found = msgspec.structs.replace(found, service_tier=self.service_tier)
        self._usage = None if self._is_nonsense else found

    @property
    def prompt_is_unknown(self) -> bool:
        """Tells whether neither the backend nor our own count knows the length of the prompt. A
        count from before the answer does not include the pages that a search found."""
        if self.prompt_is_counted or self.usage is not None:
            return False
        first = self._usage_by_first_count()
        return first is None or first.web_searches > 0

    @property
    def reported(self) -> FreeObject | None:
        """Returns the last report unchanged, for the record."""
        if self.report is None or (self.usage is None and self.absurd_report is not None):
            return self.absurd_report
        return self.report.written

    @property
    def output_tokens(self) -> int:
        """Returns our own count of the output, which errs high: at least a tokenizer's count, and
        at least one token for each piece."""
        self._count_uncounted()
        return max(self._pieces, self._counted_tokens) + self._image_tokens

    @property
    def _image_tokens(self) -> int:
        return self._images * _TOKENS_PER_IMAGE

    def charge(self) -> Charge:
        """Charges by the backend's count if there is one, else by ours."""
        usage = self.usage
        parts = () if self.report is None else self.report.parts or ()
        if usage is None:
            estimate = self.estimate()
            return Charge(estimate, estimated=True, parts=self._estimated_parts(estimate))
        if usage.completion_tokens == 0 and self.output_tokens > 0:
            # Text was delivered, so a count of zero is wrong.
            counted = min(self.output_tokens, self._output_bound)
            return Charge(
                _with_completion(usage, counted),
                estimated=True,
                # It does not matter which of them wrote the text.
                parts=(_with_completion(parts[0], counted), *parts[1:]) if parts else (),
            )
        return Charge(usage, estimated=False, parts=parts)

    @property
    def _output_bound(self) -> int:
        """Returns the maximum output that was held."""
        return self.call.choices * self.call.output_tokens_held

    @property
    def _estimated_output(self) -> int:
        """Returns our own count of the output, within the held limit. For a model that reasons,
        only that limit is known, because the delivered text does not show all that is billed."""
        if self._reasons or self.call.model.reasons:
            return self._output_bound
        return min(self.output_tokens, self._output_bound)

    def estimate(self) -> Usage:
        """Returns the usage by our own count, including the prompt unless the backend reported its
        count before it answered."""
        report, output = self.report, self._estimated_output
        return self._usage_by_first_count() or Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=output,
            # The backend may have reported searches before tokens.
            web_searches=0 if report is None else report.web_searches or 0,
            input_audio_tokens=self.input_audio_tokens,
            output_image_tokens=min(self._image_tokens, output),
            service_tier=(report and report.service_tier) or self.service_tier,
        )

    def _usage_by_first_count(self) -> Usage | None:
        """Returns the usage with the backend's prompt count, if the backend reported one before its
        answer."""
        report = self.report
        if report is None or not report.counts_prompt_first or report.completion_tokens is not None:
            return None
        output = self._estimated_output
        counted = msgspec.structs.replace(
            report,
            completion_tokens=output,
            output_image_tokens=min(self._image_tokens, output),
        )
        known = read_usage(self.call, counted)
        return known if known is not None and self._can_be_true(known) else None

    def _estimated_parts(self, estimate: Usage) -> tuple[Usage, ...]:
        """Splits the estimate into one answer for each prompt that was sent, because each has the
        price of its own length."""
        if self.prompts == 1:
            return ()
        part = msgspec.structs.replace(
            estimate,
            prompt_tokens=self.prompt_tokens // self.prompts,
            completion_tokens=0,
            output_image_tokens=0,
            web_searches=0,
            input_audio_tokens=self.input_audio_tokens // self.prompts,
        )
        first = msgspec.structs.replace(
            part,
            completion_tokens=estimate.completion_tokens,
            output_image_tokens=estimate.output_image_tokens,
            web_searches=estimate.web_searches,
        )
        return (first, *[part] * (self.prompts - 1))

    def _take(self, event: UsageReport) -> None:
        if event.usage is None:
            self.absurd_report = event.absurd
        else:
            self.report = merged(self.report, event.usage)
        self._is_stale = True

    def _can_be_true(self, usage: Usage) -> bool:
        most = _CONTEXTS_MAX * self.call.model.context_length * self.call.choices
        tokens = max(usage.prompt_tokens, usage.completion_tokens)
        return tokens <= most and self._can_have_searched(usage.web_searches)

    def _can_have_searched(self, searches: int) -> bool:
        return searches <= _SEARCHES_MAX * self.call.choices

    def _count_delta(self, delta: Delta) -> None:
        self.delivered = True
        if delta.finish is not None:
            self.finish = delta.finish
        if delta.text:
            self.count_text(delta.text)
        if delta.reasoning:
            self._reasons = True
            self.count_text(delta.reasoning)
        if delta.sealed_reasoning:
            self._reasons = True
        if delta.refusal:
            self.count_text(delta.refusal)
        for piece in delta.tool_calls:
            self.count_text((piece.name or "") + piece.arguments)
        self._images += len(delta.images)
        if delta.function_call is not None:
            called = delta.function_call
            self.count_text((called.name or "") + called.arguments)

    def count_text(self, text: str) -> None:
        """Counts another piece of an answer that has begun."""
        self._uncounted.append(text)
        self._room -= len(text) + _ROOM_OF_A_PIECE
        if self._room < 0:
            self._count_uncounted()

    def _count_uncounted(self) -> None:
        if self._uncounted:
            self._pieces += len(self._uncounted)
            self._counted_tokens += estimate_tokens("".join(self._uncounted))
            self._uncounted.clear()
            self._room = _ROOM


def read_usage(call: Call, report: ReportedUsage) -> Usage | None:
    """Interprets the report; returns None if it lacks a count. If it can mean several things, the
    backend's own price decides if it matches one of them at our prices, otherwise the total
    decides."""
    unnamed_is_1h = bool(report.cache_write_tokens) and call.writes_cache_for_1h
    possible = readings(report, unnamed_is_1h=unnamed_is_1h)
    stated = report.cost_picousd
    if len(possible) > 1 and stated:
        pricing = call.model.pricing
        found = min(possible, key=lambda usage: _distance(pricing, usage, stated))
        if _distance(pricing, found, stated) * _AGREEMENT <= stated:
            return found
    return possible[0] if possible else None


def _distance(pricing: Pricing, usage: Usage, stated_picousd: int) -> int:
    return abs(cost_of(pricing, usage, images=0).total_picousd - stated_picousd)


def _with_completion(usage: Usage, completion_tokens: int) -> Usage:
    return msgspec.structs.replace(usage, completion_tokens=completion_tokens)
