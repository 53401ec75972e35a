"""Shows all data about one call: admission, verdicts of policies, replica, times, usage and
settlement.

The hold is the highest possible cost, which was reserved before the call was sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.context import console_of
from tollkeeper.console.forms import request_id
from tollkeeper.console.rendering import render
from tollkeeper.core.views import ActivityEntry, HoldTerms
from tollkeeper.reports.traffic.service import CallDetails

# The width of the drawing of the call's spans, in drawing units.
_WIDTH = 1000
_RESOLVED = "Resolved in the ledger"
# A call with one of these settlements was not charged for any usage.
_WITHOUT_USAGE = ("released", "none")


@dataclass(frozen=True, slots=True)
class Term:
    """Represents one row in the calculation of the hold: a count multiplied by a price."""

    title: str
    count: str
    price_picousd: int
    amount_picousd: int


@dataclass(frozen=True, slots=True)
class Span:
    """Represents a part of the call's duration. Times are milliseconds since the start of the
    call."""

    title: str
    start_ms: int
    end_ms: int
    tone: str
    # The position and width in the drawing.
    x: int = 0
    width: int = 1


async def show(request: Request) -> Response:
    services = console_of(request).services
    story = await services.traffic.call_story(request_id(request.path_params["request_id"]))
    entry = story.entry
    organization = await services.organizations.organization_show(entry.organization_id)
    project = await services.projects.project_show(entry.project_id)
    key = await services.project_keys.project_key_show(entry.key_id)
    policies = {
        policy.id: policy.name
        for policy in await services.policies.policy_list(entry.organization_id)
    }
    return render(
        request,
        "call.html",
        nav="activity",
        title="Call",
        entry=entry,
        # True if only the ledger contains the call: its activity record was not written (yet).
        unrecorded=entry.status is None,
        without_usage=entry.settlement in _WITHOUT_USAGE,
        ledger=story.ledger,
        terms=[] if story.ledger is None else _terms(story.ledger.hold),
        spans=_with_positions(_spans(story)),
        organization=organization,
        project=project,
        key=key,
        policy_names=policies,
        reported=None
        if entry.reported_usage is None
        else msgspec.json.format(msgspec.json.encode(entry.reported_usage), indent=2).decode(),
    )


def _terms(hold: HoldTerms) -> list[Term]:
    """Returns the calculation of the hold: each limit multiplied by its highest price. A last row
    contains the rest of the hold, if there is any."""
    prices = hold.prices
    prompt_price = max(
        price for name, price in prices.items() if name == "prompt" or "cache" in name
    )
    output = hold.choices * hold.output_tokens_max
    terms = [
        Term(
            "Prompt, at most",
            f"{hold.prompt_tokens_max} tokens",
            prompt_price,
            prompt_price * hold.prompt_tokens_max,
        ),
        Term(
            "Completion, at most",
            f"{hold.choices} \u00d7 {hold.output_tokens_max} tokens",
            prices["completion"],
            prices["completion"] * output,
        ),
    ]
    terms += _audio_terms(hold, prompt_price)
    if hold.images:
        amount = prices["image"] * hold.images
        terms.append(Term("Images", str(hold.images), prices["image"], amount))
    if hold.web_searches:
        price = prices["web_search"]
        terms.append(Term("Web searches", str(hold.web_searches), price, price * hold.web_searches))
    if prices["request"]:
        terms.append(Term("Request", "1", prices["request"], prices["request"]))
    remainder = hold.hold_picousd - sum(term.amount_picousd for term in terms)
    if remainder:
        terms.append(Term("Other bounds", "", remainder, remainder))
    return terms


def _audio_terms(hold: HoldTerms, prompt_price: int) -> list[Term]:
    """Returns the rows for the surcharge of audio tokens over text tokens. The rows for prompt and
    completion already include audio tokens at the price of text tokens."""
    prices = hold.prices
    output = hold.choices * hold.output_audio_tokens_max
    surcharges = (
        ("Audio in the prompt", hold.input_audio_tokens_max, prices["input_audio"] - prompt_price),
        ("Audio in the answer", output, prices["output_audio"] - prices["completion"]),
    )
    return [
        Term(name, f"{tokens} tokens", extra, extra * tokens)
        for name, tokens, extra in surcharges
        if extra > 0 and tokens
    ]


def _spans(story: CallDetails) -> list[Span]:
    entry, ledger = story.entry, story.ledger
    start = entry.started_at_ms
    spans: list[Span] = []
    if ledger is not None:
        held_ms = max(0, ledger.hold.held_at_ms - start)
        spans.append(Span("Admission until the hold", 0, held_ms, "calm"))
    for verdict in entry.verdicts:
        judged_ms = max(0, verdict.judged_at_ms - start)
        began_ms = max(0, judged_ms - verdict.duration_ms)
        spans.append(Span(f"Judged: {verdict.direction}", began_ms, judged_ms, "warning"))
    spans += _backend_spans(entry)
    if ledger is not None and ledger.resolution is not None:
        resolved_ms = max(0, ledger.resolution.resolved_at_ms - start)
        spans.append(Span(_RESOLVED, resolved_ms, resolved_ms, "calm"))
    return spans


def _backend_spans(entry: ActivityEntry) -> Iterator[Span]:
    """Yields two spans: from sending the call to the first piece of the answer, and from the first
    piece to the end of the answer. Yields only one span if there was no piece, and nothing if the
    call was not sent or its duration is unknown."""
    if entry.dispatched_ms is None or entry.duration_ms is None:
        return
    sent_ms = entry.dispatched_ms
    end_ms = entry.duration_ms if entry.upstream_ms is None else sent_ms + entry.upstream_ms
    first_piece_ms = entry.first_piece_ms
    if first_piece_ms is None:
        yield Span("Backend", min(sent_ms, end_ms), end_ms, "accent")
        return
    yield Span(
        "Backend until the first piece",
        min(sent_ms, first_piece_ms),
        first_piece_ms,
        "accent",
    )
    yield Span("Answer", first_piece_ms, max(first_piece_ms, end_ms), "good")


def _with_positions(spans: list[Span]) -> list[Span]:
    """Adds drawing positions to the spans. A resolution after the end of the call is drawn at the
    right edge."""
    ends = sorted(span.end_ms for span in spans if span.title != _RESOLVED)
    longest = max([1, *ends])
    positioned = []
    for span in spans:
        x = min(span.start_ms * _WIDTH // longest, _WIDTH - 4)
        width = max(4, min((span.end_ms - span.start_ms) * _WIDTH // longest, _WIDTH - x))
        positioned.append(Span(span.title, span.start_ms, span.end_ms, span.tone, x, width))
    return positioned
