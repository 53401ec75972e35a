"""Tests the meter of an answer: the usage that it computes, and that it keeps little of the text."""

import pytest

from tests.support.backend_calls import make_call
from tests.support.tables import each
from tollkeeper.core.inference import Delta, UsageReport
from tollkeeper.core.metering import Meter
from tollkeeper.core.usage import ReportedUsage


@pytest.mark.slow
@each("size", [1, 100, 10_000, 1_000_000])
def test_little_of_the_text_is_kept(size: int) -> None:
    """A stream may be open for a long time, and its pieces may be large."""
    meter, text = Meter(make_call(streamed=True), 10), "word " * (size // 5) + "x"
    for _ in range(300):
        meter.count([Delta(0, text=text)])
        assert sum(map(len, meter._uncounted)) <= 16_384
    assert meter.output_tokens >= 300 * len(text) // 8


def test_small_pieces_are_counted_together() -> None:
    """The provider's tokenizer reads whole words, which a stream may split into pieces."""
    whole, pieces = (Meter(make_call(streamed=True), 10) for _ in range(2))
    whole.count([Delta(0, text="Hello " * 100)])
    for _ in range(100):
        pieces.count([Delta(0, text="Hello ")])
    assert pieces._counted_tokens == 0
    assert pieces.output_tokens == max(100, whole.output_tokens)


def test_searches_that_were_told_before_a_stream_broke_off_are_charged() -> None:
    """The fee for searches is charged even if the gateway counts the tokens itself."""
    meter = Meter(make_call(streamed=True), 10)
    meter.count([UsageReport(ReportedUsage(web_searches=1)), Delta(0, text="Hello")])
    meter.count([UsageReport(ReportedUsage(web_searches=2))])
    charge = meter.charge()
    assert (charge.estimated, charge.web_searches) == (True, 2)
    assert charge.prompt_tokens == 10


def test_searches_of_several_prompts_are_charged_once() -> None:
    meter = Meter(make_call(n=3), 30, prompts=3)
    meter.count([UsageReport(ReportedUsage(web_searches=2)), Delta(0, text="Hello")])
    parts = meter.charge().parts
    assert [part.web_searches for part in parts] == [2, 0, 0]
    assert [part.prompt_tokens for part in parts] == [10, 10, 10]


def test_hidden_reasoning_is_estimated_only_for_the_completions_that_were_sent() -> None:
    meter = Meter(make_call(choices=4, streamed=True, output_tokens_max=100), 40, prompts=4)
    meter.count([Delta(0, reasoning="Hm."), Delta(0, text="Hello")])
    assert meter.charge().completion_tokens == 400
    meter.set_prompts_sent(1, 1)
    charge = meter.charge()
    assert (charge.prompt_tokens, charge.completion_tokens) == (10, 100)


def test_a_single_request_for_all_completions_is_estimated_with_all_completions() -> None:
    meter = Meter(make_call(choices=4, streamed=True, output_tokens_max=100), 40, prompts=4)
    meter.count([Delta(0, reasoning="Hm."), Delta(0, text="Hello")])
    meter.set_prompts_sent(1, 4)
    charge = meter.charge()
    assert (charge.prompt_tokens, charge.completion_tokens) == (10, 400)


def test_the_service_tier_of_a_report_without_counts_is_kept() -> None:
    meter = Meter(make_call(streamed=True), 10)
    meter.count([UsageReport(ReportedUsage(service_tier="flex")), Delta(0, text="Hello")])
    charge = meter.charge()
    assert (charge.estimated, charge.service_tier) == (True, "flex")


def test_a_service_tier_that_is_named_after_the_counts_changes_nothing_else() -> None:
    """The total includes reasoning, which the count of the completion does not."""
    counts = ReportedUsage(
        prompt_tokens=7, completion_tokens=5, total_tokens=20, is_running_total=True
    )
    meter = Meter(make_call(streamed=True), 10)
    meter.count([UsageReport(counts), UsageReport(ReportedUsage(service_tier="flex"))])
    meter.broke_off = True
    charge = meter.charge()
    assert (charge.completion_tokens, charge.service_tier) == (13, "flex")
    assert charge.estimated


@each("completion", [3, None], ids=["counted", "broken off"])
@each(
    ("choices", "searches", "nonsense"),
    [
        (1, 10_000, False),
        (1, 10_001, True),
        (3, 30_000, False),
        (3, 30_001, True),
        (1, 2**53, True),
    ],
)
def test_searches_beyond_any_sense_are_not_charged(
    choices: int, searches: int, nonsense: bool, completion: int | None
) -> None:
    """More than 10,000 searches for each choice are impossible, so they are not charged."""
    meter = Meter(make_call(choices=choices), 10)
    report = ReportedUsage(prompt_tokens=10, completion_tokens=completion, web_searches=searches)
    meter.count([Delta(0, text="Hello"), UsageReport(report)])
    assert meter.reported_impossible_usage is nonsense
    assert nonsense or meter.charge().web_searches == searches


def test_an_image_is_counted_where_nothing_is_reported() -> None:
    meter = Meter(make_call(streamed=True, output_tokens_max=8192), 10)
    meter.count([Delta(0, text="A fox:", images=("data:image/png;base64,AAAA",))])
    usage = meter.charge()
    assert usage.output_image_tokens == 6240
    assert usage.completion_tokens > 6240


def test_images_are_counted_within_the_bound() -> None:
    meter = Meter(make_call(streamed=True, output_tokens_max=100), 10)
    meter.count([Delta(0, images=("data:image/png;base64,AAAA",) * 3)])
    usage = meter.charge()
    assert (usage.completion_tokens, usage.output_image_tokens) == (100, 100)


REASONING = (
    [Delta(0, reasoning="Hm.")],
    [Delta(0, sealed_reasoning="sealed")],
)


@each("seen", REASONING, ids=["text", "sealed"])
def test_output_with_reasoning_is_bounded_by_the_hold(seen: list[Delta]) -> None:
    """The text that arrived does not show how many reasoning tokens the provider bills."""
    plain, reasoned = (Meter(make_call(choices=2, streamed=True), 10) for _ in range(2))
    for meter in (plain, reasoned):
        meter.count([Delta(0, text="Hello")])
    reasoned.count(seen)
    assert plain.charge().completion_tokens < 10
    assert reasoned.charge().completion_tokens == 2 * 1024
    assert reasoned.charge().estimated
    reasoned.count([UsageReport(ReportedUsage(prompt_tokens=3, completion_tokens=4))])
    assert (reasoned.charge().completion_tokens, reasoned.charge().estimated) == (4, False)


def test_a_prompt_that_is_only_bounded_is_not_counted() -> None:
    call = make_call(streamed=True)
    meter = Meter(call, 10**6, prompt_is_counted=False)
    meter.count([Delta(0, text="Hello")])
    assert meter.prompt_is_unknown
    assert not Meter(call, 10**6).prompt_is_unknown
    first = Meter(call, 10**6, prompt_is_counted=False)
    first.count([UsageReport(ReportedUsage(prompt_tokens=7, reports_prompt_before_output=True))])
    assert not first.prompt_is_unknown
    assert first.charge().prompt_tokens == 7
    meter.count([UsageReport(ReportedUsage(prompt_tokens=3, completion_tokens=4))])
    assert not meter.prompt_is_unknown
