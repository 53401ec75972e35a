"""Tests that web searches of a Responses backend are reported at once, and counted once."""

import json
from typing import Any

from tests.providers.responses.test_answer import END, payloads, read
from tests.providers.responses.test_answer import text_delta as _text
from tests.support.backend_calls import make_call
from tests.support.tables import each
from tests.support.upstream_wire import message_item, response, typed
from tollkeeper.core.inference import UsageReport
from tollkeeper.providers.responses.answer import ResponsesAnswer

ERROR = {"code": "server_error", "message": "no"}


def search_item(number: int, **fields: Any) -> dict[str, Any]:
    action = {"type": "search", "query": "weather"}
    made = {"type": "web_search_call", "id": f"ws_{number}", "status": "completed"}
    return {**made, "action": action, **fields}


def search_done(at: int, **fields: Any) -> bytes:
    return typed("response.output_item.done", output_index=at, item=search_item(at, **fields))


def test_searches_are_told_when_they_are_made() -> None:
    """The backend's own report comes only at the end, and a stream may break off before its end."""
    answer = ResponsesAnswer(make_call(streamed=True, web_search_options={}))
    opened_page = search_done(1, action={"type": "open_page", "url": "https://a.example"})
    events = answer.read(payloads(search_done(0), opened_page, search_done(2), _text("a")))
    reports = [event.usage for event in events if isinstance(event, UsageReport)]
    assert [None if report is None else report.web_searches for report in reports] == [1, 2]
    # A result may omit items that were in the stream. Its searches still count.
    events = answer.read(payloads(END))
    assert isinstance(events[-1], UsageReport)
    assert events[-1].usage is not None
    assert events[-1].usage.web_searches == 2


def test_searches_in_the_stream_and_in_the_result_are_the_same() -> None:
    result = response(search_item(0), search_item(1), message_item("ab"))
    end = typed("response.completed", response=result)
    events = read(search_done(0), search_done(1), _text("ab"), end, web_search_options={})
    assert isinstance(events[-1], UsageReport)
    assert events[-1].usage is not None
    assert events[-1].usage.web_searches == 2


# In a completed response of Azure, the items still have the status "searching".
@each("status", ["completed", "searching", "in_progress", None])
@each("streamed", [False, True])
def test_searches_of_a_completed_response_count_by_their_kind(
    status: str | None, streamed: bool
) -> None:
    opened_page = {"type": "open_page", "url": "https://a.example"}
    items = [
        search_item(0, status=status),
        search_item(1, status=status, action=None),
        search_item(2, status=status, action=opened_page),
        search_item(3, status="failed"),
    ]
    result = {**response(*items, message_item("ab")), "status": "completed"}
    done = [
        typed("response.output_item.done", output_index=at, item=item)
        for at, item in enumerate(items)
    ]
    end = typed("response.completed", response=result)
    events = read(*(done if streamed else ()), _text("ab"), end, web_search_options={})
    assert _searches(events[-1]) == 2


@each(("status", "searches"), [("completed", 1), ("searching", 0)])
def test_a_search_under_way_in_an_incomplete_response_was_not_made(
    status: str, searches: int
) -> None:
    result = response(search_item(0, status=status), message_item("ab"))
    end = typed("response.incomplete", response={**result, "status": "incomplete"})
    assert _searches(read(_text("ab"), end, web_search_options={})[-1]) == searches


@each(
    "end",
    [
        typed("response.failed", response=response(status="failed", usage=None, error=ERROR)),
        typed("error", **ERROR),
        None,
    ],
)
def test_a_failure_after_a_search_is_charged(end: bytes | None) -> None:
    """The provider has made the search and charges for it, although the answer has no text."""
    answer = ResponsesAnswer(make_call(streamed=True, web_search_options={}))
    events = answer.read(payloads(search_done(0)))
    assert _searches(events[-1]) == 1
    # The model may now reason for longer than the idle timeout, so the answer is not accepted yet.
    accepted = [answer.accepted]
    answer.read([] if end is None else payloads(end))
    answer.end_body()
    assert [*accepted, answer.accepted] == [False, True]
    assert answer.failure is not None
    assert answer.failure.charged


def test_a_failed_answer_that_is_not_streamed_is_charged_for_its_searches() -> None:
    answer = ResponsesAnswer(make_call(web_search_options={}))
    failed = response(search_item(0), status="failed", usage=None, error=ERROR)
    events = answer.read_whole(json.dumps(failed).encode())
    assert _searches(events[-1]) == 1
    assert answer.accepted
    assert answer.failure is not None
    assert answer.failure.charged


def _searches(event: object) -> int | None:
    assert isinstance(event, UsageReport)
    assert event.usage is not None
    return event.usage.web_searches
