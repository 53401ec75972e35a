"""Counts the tokens of an answer, so that a call can be charged even if the backend reports no usage or the
answer is cut off."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from tollkeeper.core.estimate import estimate_tokens
from tollkeeper.core.inference import Call, Delta, Event, UsageReport, other_fields
from tollkeeper.core.pricing import Bounds, Pricing, cost_of
from tollkeeper.core.prompt import FreeObject
from tollkeeper.core.usage import (
    NO_REPORT,
    ReportedUsage,
    Usage,
    further_counts,
    merged,
    possible_usages,
)

# Pieces are counted together when the buffer is full. Each takes its length plus `_CHARACTERS_PER_PIECE`.
_BUFFER_CHARACTERS_MAX = 16_384
_CHARACTERS_PER_PIECE = 32
# A report of more than this many contexts per completion can't be true.
_CONTEXTS_MAX = 16
# Without a report: the highest of any published model family (GPT Image, high quality).
_TOKENS_PER_IMAGE = 6_240
# More per completion can't be true.
_SEARCHES_MAX = 10_000
# A stated price agrees with ours if they differ by at most 1/100.
_PRICE_TOLERANCE_DIVISOR = 100


class Meter(msgspec.Struct):
    """One answer and the merged usage reports of its backend."""

    call: Call
    # The likely number in all sent prompts, charged if the backend reports none.
    prompt_tokens: int
    # A fanned-out call sends its prompt `n` times.
    prompts: int = 1
    # The part of `prompt_tokens` that may be audio.
    input_audio_tokens: int = 0
    # Or at least a guess, which includes images. Nobody knows the size of other media and search results.
    prompt_is_counted: bool = True
    prompt_is_guessed: bool = True
    # Without impossible counts.
    report: ReportedUsage = NO_REPORT
    # Unchanged.
    impossible_report: FreeObject | None = None
    finish: str | None = None
    # Outside of usage reports.
    service_tier: str | None = None
    # A piece has come, even if only the end of a choice. From then on the call is charged.
    has_begun: bool = False
    # A running total is then an estimate, because the backend may bill more.
    broke_off: bool = False
    # The answer failed, and the backend bills no tokens and reports no other cost.
    is_free: bool = False
    # The backend may bill more reasoning than it sends.
    _has_reasoning: bool = False
    # Completions that no sent prompt asks for.
    _choices_not_sent: int = 0
    _pieces: int = 0
    _counted_tokens: int = 0
    _images: int = 0
    _uncounted: list[str] = []
    _room: int = _BUFFER_CHARACTERS_MAX

    def set_prompts_sent(self, prompts: int, choices: int) -> None:
        """Which may be less often than the hold assumed. `choices` are all that the sent prompts ask for
        together."""
        self.prompt_tokens = self.prompt_tokens // self.prompts * prompts
        self.input_audio_tokens = self.input_audio_tokens // self.prompts * prompts
        self.prompts = prompts
        self._choices_not_sent = self.call.choices - choices

    def set_parts(self, parts: Sequence["Meter"], held: Bounds | None = None) -> None:
        """Takes over the parts of a fanned-out call that were sent and not refused. Each is charged by its
        own report. One without is estimated: all have the same prompt, so another's count is used up to its
        share of the hold, and if nothing came its output is taken to be the longest of the others'. If `held`
        has searches, nobody knows how many a part without a report made."""
        prompt_tokens = self.prompt_tokens // self.prompts
        audio_tokens = self.input_audio_tokens // self.prompts
        # A backend that has begun to answer charges for at least one.
        sent = max(1, len(parts))
        self.set_prompts_sent(sent, sent)
        for part in parts:
            part.prompt_tokens, part.input_audio_tokens = prompt_tokens, audio_tokens
            part.prompt_is_counted = self.prompt_is_counted
            part.prompt_is_guessed = self.prompt_is_guessed
        for part in parts:
            if part.reported_impossible_usage:
                self.impossible_report = part.reported or {}
                return
        known = [usage for part in parts if (usage := part.usage) and not usage.web_searches]
        if known and not (held is not None and held.web_searches):
            longest = max(known, key=lambda usage: (usage.prompt_tokens, usage.input_audio_tokens))
            prompt_tokens = longest.prompt_tokens
            if held is not None:
                prompt_tokens = min(prompt_tokens, held.prompt_tokens // held.prompts)
            for part in parts:
                part.prompt_tokens = prompt_tokens
                part.input_audio_tokens = min(longest.input_audio_tokens, prompt_tokens)
                part.prompt_is_counted = True
        received = [part.charge() for part in parts if part.has_begun or part.usage is not None]
        if not received or any(part.prompt_is_unknown for part in parts):
            return
        longest_output = max(usage.completion_tokens for usage in received)
        unseen = [part for part in parts if not (part.has_begun or part.usage is not None)]
        received += [part._estimate(longest_output) for part in unseen]
        costs = [part.report.cost_picousd for part in parts]
        stated_costs = [cost for cost in costs if cost is not None]
        self.report = ReportedUsage(
            parts=tuple(received),
            cost_picousd=sum(stated_costs) if len(stated_costs) == len(costs) else None,
            written={"parts": [part.report.written for part in parts]},
        )

    def count(self, batch: Iterable[Event]) -> None:
        for event in batch:
            if type(event) is Delta:
                self.has_begun = True
                if event.finish:
                    self.finish = event.finish
                if event.text:
                    self.count_text(event.text)
                if any(other_fields(event)):
                    self._count_other_fields(event)
            elif type(event) is UsageReport:
                if event.usage is None:
                    self.impossible_report = event.impossible
                else:
                    self.report = merged(self.report, event.usage)
            elif event.service_tier:
                self.service_tier = event.service_tier

    @property
    def usage(self) -> Usage | None:
        """None without a usable report. Interpreted only here, because a stream may have many."""
        usage = read_usage(self.call, self.report)
        if usage is None or not self._can_be_true(usage):
            return None
        if self.service_tier is not None and usage.service_tier is None:
            return replace(usage, service_tier=self.service_tier)
        return usage

    @property
    def reported_impossible_usage(self) -> bool:
        """An operator then has to check the call."""
        usage = read_usage(self.call, self.report)
        if usage is not None:
            return not self._can_be_true(usage)
        searches = self.report.web_searches or 0
        return self.impossible_report is not None or searches > _SEARCHES_MAX * self.call.choices

    @property
    def reports_fees(self) -> bool:
        """The report states a price or searches, is impossible, or says that another provider bills the
        operator's own key (`is_byok`)."""
        report = self.report
        return (
            bool(report.cost_picousd or report.web_searches)
            or (report.written or {}).get("is_byok") is True
            or self.reported_impossible_usage
        )

    @property
    def prompt_is_unknown(self) -> bool:
        """No complete report, and no count of the whole prompt. A count that comes before the answer
        suffices, unless the model searched: it lacks the pages found. If only the prompt's count is missing,
        a guess suffices. Without output the prompt was blocked and may not even be billed, so its media are
        left out."""
        if self.prompt_is_counted or self.usage is not None:
            return False
        usage = self._completed_report(self._estimated_output)
        if usage is None or usage.web_searches > 0:
            return True
        is_reported = self.report.prompt_tokens is not None
        return not (is_reported or self.prompt_is_guessed or usage.completion_tokens == 0)

    @property
    def reported(self) -> FreeObject | None:
        """Returns the last report unchanged, for the activity record."""
        impossible = self.impossible_report
        return self.report.written if impossible is None or self.usage is not None else impossible

    @property
    def output_tokens(self) -> int:
        """Returns the gateway's own count of the output. The count errs high: it is at least one
        token per piece, and usually at least a tokenizer's count."""
        self._count_uncounted()
        return max(self._pieces, self._counted_tokens) + self._image_tokens

    @property
    def _image_tokens(self) -> int:
        return self._images * _TOKENS_PER_IMAGE

    def charge(self) -> Usage:
        """The backend's count, otherwise ours, which also replaces zero output tokens if output came."""
        usage = self.usage
        if usage is None:
            return self._estimate()
        if not usage.completion_tokens and self.output_tokens > 0:
            # The backend's zero is wrong, because output came. The cost doesn't depend on the part, so the
            # first gets all.
            counted, parts = min(self.output_tokens, self._output_limit), usage.parts
            if parts:
                parts = (replace(parts[0], completion_tokens=counted), *parts[1:])
            return replace(usage, completion_tokens=counted, estimated=True, parts=parts)
        if self.broke_off and self.report.is_running_total:
            return replace(usage, estimated=True)
        return usage

    @property
    def _output_limit(self) -> int:
        """What the hold covers for the completions that were sent."""
        call = self.call
        return (call.choices - self._choices_not_sent) * call.output_tokens_held

    @property
    def _estimated_output(self) -> int:
        """At most what's held, and with reasoning just that, because the text may lack billed reasoning."""
        if self._has_reasoning or self.call.model.reasons:
            return self._output_limit
        return min(self.output_tokens, self._output_limit)

    def _estimate(self, output_min: int = 0) -> Usage:
        """By our own count, with what the backend did report."""
        report = self.report
        output = max(self._estimated_output, min(output_min, self._output_limit))
        estimate = self._completed_report(output) or Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=output,
            # It may have reported searches before tokens.
            web_searches=report.web_searches or 0,
            input_audio_tokens=self.input_audio_tokens,
            output_image_tokens=min(self._image_tokens, output),
            service_tier=report.service_tier or self.service_tier,
        )
        return replace(estimate, estimated=True, parts=self._estimated_parts(estimate))

    def _completed_report(self, output: int) -> Usage | None:
        """If the report lacks only one count, completes it with ours. If there's only the prompt's, before
        the answer, `output` is the other. None for any other report."""
        report = self.report
        if report.prompt_tokens is None:
            if report.completion_tokens is None or (
                report.completion_tokens == 0 and self.output_tokens > 0
            ):
                return None
            # The total lacks the prompt too.
            report = replace(report, prompt_tokens=self.prompt_tokens, total_tokens=None)
        elif report.reports_prompt_before_output and report.completion_tokens is None:
            output_images = min(self._image_tokens, output)
            report = replace(report, completion_tokens=output, output_image_tokens=output_images)
        else:
            return None
        usage = read_usage(self.call, report)
        return usage if usage is not None and self._can_be_true(usage) else None

    def _estimated_parts(self, estimate: Usage) -> tuple[Usage, ...]:
        """One usage per sent prompt, because its length may set its price."""
        if self.prompts == 1:
            return ()
        part = replace(
            estimate,
            prompt_tokens=self.prompt_tokens // self.prompts,
            completion_tokens=0,
            output_image_tokens=0,
            web_searches=0,
            input_audio_tokens=self.input_audio_tokens // self.prompts,
        )
        first = replace(
            part,
            completion_tokens=estimate.completion_tokens,
            output_image_tokens=estimate.output_image_tokens,
            web_searches=estimate.web_searches,
        )
        return (first, *[part] * (self.prompts - 1))

    def _can_be_true(self, usage: Usage) -> bool:
        call = self.call
        tokens_max = _CONTEXTS_MAX * call.model.context_length * call.choices
        return (
            usage.prompt_tokens <= tokens_max
            and usage.completion_tokens <= tokens_max
            and (not usage.web_searches or usage.web_searches <= _SEARCHES_MAX * call.choices)
        )

    def _count_other_fields(self, delta: Delta) -> None:
        if delta.reasoning or delta.sealed_reasoning:
            self._has_reasoning = True
        if delta.reasoning:
            self.count_text(delta.reasoning)
        if delta.refusal:
            self.count_text(delta.refusal)
        for piece in delta.tool_calls:
            self.count_text((piece.name or "") + piece.arguments)
        self._images += len(delta.images)
        query = None if delta.search_block is None else delta.search_block.query
        if query is not None:
            self.count_text(msgspec.json.encode(query).decode())
        if delta.function_call is not None:
            function_call = delta.function_call
            self.count_text((function_call.name or "") + function_call.arguments)

    def count_text(self, text: str) -> None:
        self._uncounted.append(text)
        self._room -= len(text) + _CHARACTERS_PER_PIECE
        if self._room < 0:
            self._count_uncounted()

    def _count_uncounted(self) -> None:
        if self._uncounted:
            self._pieces += len(self._uncounted)
            self._counted_tokens += estimate_tokens("".join(self._uncounted))
            self._uncounted.clear()
            self._room = _BUFFER_CHARACTERS_MAX


def read_usage(call: Call, report: ReportedUsage) -> Usage | None:
    """None without the prompt's or the completion's count."""
    if any(further_counts(report)):
        return _choose_meaning(call, report)
    prompt, completion = report.prompt_tokens, report.completion_tokens
    if prompt is None or completion is None:
        return None
    if report.total_tokens is not None and report.total_tokens - prompt > completion:
        # The rest of the total is output.
        completion = report.total_tokens - prompt
    return Usage(
        prompt,
        completion,
        service_tier=report.service_tier,
        prompt_details=report.prompt_details,
        completion_details=report.completion_details,
    )


def _choose_meaning(call: Call, report: ReportedUsage) -> Usage | None:
    """A report may have several meanings. If it states a price, the meaning whose cost matches it, at any
    backend's prices of any time, because the provider may change its prices a little earlier or later;
    otherwise the likeliest."""
    possible = possible_usages(
        report, unnamed_is_1h=call.writes_cache_for_1h if report.cache_write_tokens else False
    )
    if report.cost_picousd and len(possible) > 1:
        prices, stated = call.model.all_prices, report.cost_picousd
        closest = min(possible, key=lambda usage: _distance(prices, usage, stated))
        if _distance(prices, closest, stated) * _PRICE_TOLERANCE_DIVISOR <= stated:
            return closest
    return possible[0] if possible else None


def _distance(prices: Iterable[Pricing], usage: Usage, stated_picousd: int) -> int:
    costs = [sum(cost_of(pricing, usage, images=0).values()) for pricing in prices]
    return min(abs(cost - stated_picousd) for cost in costs)
