"""Tests failures that the Responses protocol can express, and usage reports of every kind."""

import asyncio
import json
from typing import Any

import pytest

from tests.providers.faults import BOTH, check_failure
from tests.providers.responses.faults import fault, silent_after, used
from tests.support.backend_calls import KEY
from tests.support.tables import each
from tests.support.upstream import DONE, answer, cut, sse, stream
from tests.support.upstream_responses import BEGUN, respond, text_then
from tests.support.upstream_wire import (
    RESPONSE_USAGE,
    begun_response,
    message_item,
    response,
    response_records,
    typed,
)
from tollkeeper.core.errors import BackendFailed, ProviderRejected, RateLimited, TollkeeperError

FAILED = {"code": "server_error", "message": f"broke at {KEY}"}
TOLD: list[tuple[Any, type[TollkeeperError]]] = [
    ({"code": "server_error", "message": "no"}, BackendFailed),
    ({"code": "rate_limit_exceeded", "message": "no"}, RateLimited),
    ({"code": "invalid_prompt", "message": f"no, {KEY}"}, ProviderRejected),
    ({"code": "image_too_large", "message": "no"}, ProviderRejected),
    ({"code": 400, "message": "no"}, ProviderRejected),
    ({"code": ["odd"]}, BackendFailed),
    ("broke", BackendFailed),
]


def failed(error: Any = FAILED, **fields: Any) -> dict[str, Any]:
    return {**response(status="failed", usage=None), "output": [], "error": error, **fields}


@each(("told", "error"), TOLD)
async def test_failed_before_anything(told: Any, error: type[TollkeeperError]) -> None:
    for records in (
        [typed("response.failed", response=failed(told))],
        [*BEGUN, typed("response.failed", response=failed(told))],
        [typed("error", error=told), typed("response.failed", response=failed())],
        [typed("error", error=told)],
        [typed("error", error=told), DONE],
        [sse({"error": told})],
    ):
        check_failure(await fault(stream(records)), error, charged=False)
    check_failure(await fault(answer(failed(told)), streamed=False), error, charged=False)
    check_failure(await fault(answer({"error": told}), streamed=False), error, charged=False)
    if isinstance(told, dict):
        check_failure(await fault(stream([typed("error", **told)])), error, charged=False)


@each(
    "records",
    [
        [typed("response.failed", response=failed({"code": "invalid_prompt"}))],
        [typed("error", code="invalid_prompt", message="no")],
        [typed("error", error=FAILED), typed("response.failed", response=failed())],
        [typed("response.cancelled", response=failed(None, status="cancelled"))],
        [typed("response.completed", response=failed(None))],
    ],
)
async def test_failed_in_the_middle(records: list[bytes]) -> None:
    outcome = await fault(stream(text_then(*records)))
    check_failure(outcome, BackendFailed, charged=True, text="0 1 ")
    assert outcome.reports == []


@each("announced", [False, True])
async def test_usage_of_a_failure(announced: bool) -> None:
    """The usage is known, even if the failure came before any output and is a refusal."""
    end = typed(
        "response.failed", response=failed({"code": "invalid_prompt"}, usage=RESPONSE_USAGE)
    )
    before = [typed("error", code="invalid_prompt", message="no")] if announced else []
    outcome = await fault(stream([*BEGUN, *before, end]))
    assert type(outcome.error) is ProviderRejected
    assert outcome.error.charged
    assert outcome.deltas == []
    assert outcome.usage == used()
    outcome = await fault(stream(text_then(*before, end)))
    assert type(outcome.error) is BackendFailed
    assert outcome.text() == "0 1 "
    assert outcome.usage == used()


async def test_a_failure_after_which_nothing_comes() -> None:
    """The gateway waits for the result of the failure until the idle timeout ends the wait."""
    announced = typed("error", code="invalid_prompt", message="no")
    patience: dict[str, Any] = {"idle_timeout_s": 0.1, "deadline_s": 600}
    async with asyncio.timeout(60):
        outcome = await fault(silent_after([*BEGUN, announced]), **patience)
        check_failure(outcome, ProviderRejected, charged=False)
        outcome = await fault(silent_after(text_then(announced)), **patience)
        check_failure(outcome, BackendFailed, charged=True, text="0 1 ")


async def test_the_result_of_a_failure_may_come_later() -> None:
    failed_later = failed({"code": "invalid_prompt"}, usage=RESPONSE_USAGE)
    announced = typed("error", code="invalid_prompt", message="no")
    outcome = await fault(
        stream([announced, typed("response.failed", response=failed_later)], pause_s=0.02)
    )
    assert type(outcome.error) is ProviderRejected
    assert outcome.usage == used()


@BOTH
@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_a_failure_without_a_word(status: str, streamed: bool) -> None:
    result = failed(None, status=status, usage=RESPONSE_USAGE)
    verb = stream([typed(f"response.{status}", response=result)]) if streamed else answer(result)
    outcome = await fault(verb, streamed=streamed)
    assert type(outcome.error) is BackendFailed
    assert outcome.error.charged
    assert outcome.usage == used()


async def test_usage_of_a_failure_in_json() -> None:
    outcome = await fault(answer(failed(usage=RESPONSE_USAGE)), streamed=False)
    assert type(outcome.error) is BackendFailed
    assert outcome.error.charged
    assert outcome.usage == used()
    partly = failed(output=[message_item("Hel")])
    check_failure(
        await fault(answer(partly), streamed=False), BackendFailed, charged=True, text="Hel"
    )


async def test_a_failure_that_used_nothing() -> None:
    nothing = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    for verb, streamed in (
        (stream([typed("response.failed", response=failed(usage=nothing))]), True),
        (answer(failed(usage=nothing)), False),
    ):
        check_failure(await fault(verb, streamed=streamed), BackendFailed, charged=False)


@each(
    "result",
    [
        {},
        {"output": None},
        {"output": "x"},
        {"status": "in_progress", "output": []},
        {"status": "queued", "output": []},
        begun_response(),
        [],
    ],
)
async def test_a_result_that_is_none(result: Any) -> None:
    verb = answer(json.dumps(result).encode())
    check_failure(await fault(verb, streamed=False), BackendFailed, charged=True)


# Tests of usage reports.


@BOTH
async def test_no_usage(streamed: bool) -> None:
    outcome = await fault(respond(usage=None), streamed=streamed)
    outcome.check_complete()
    assert outcome.reports == []


ABSURD = {
    "negative": b'{"input_tokens":-1,"output_tokens":3}',
    "huge": b'{"input_tokens":7,"output_tokens":9223372036854775808}',
    "fraction": b'{"input_tokens":7,"output_tokens":1.5}',
    "text": b'{"input_tokens":"7","output_tokens":3}',
    "NaN": b'{"input_tokens":NaN,"output_tokens":3}',
    "missing": b'{"input_tokens":7}',
    "chat's names": b'{"prompt_tokens":7,"completion_tokens":3}',
    "a list": b"[7,3]",
    "empty": b"{}",
}


@pytest.mark.parametrize("case", ABSURD)
@BOTH
async def test_absurd_usage(case: str, streamed: bool) -> None:
    placeholder = b'"absurd"'
    if streamed:
        data = b"".join(response_records(usage="absurd"))
        verb = cut(data.replace(placeholder, ABSURD[case]))
    else:
        body = json.dumps(response(usage="absurd")).encode()
        verb = answer(body.replace(placeholder, ABSURD[case]))
    outcome = await fault(verb, streamed=streamed)
    outcome.check_complete()
    assert outcome.text() == "Hello"
    assert outcome.usage is None


async def test_usage_twice() -> None:
    other = response(usage={"input_tokens": 9, "output_tokens": 9, "total_tokens": 18})
    records = [*response_records(), typed("response.completed", response=other), DONE]
    for verb in (stream(records), stream([b"".join(records)])):
        outcome = await fault(verb)
        outcome.check_complete()
        assert outcome.usage == used()
