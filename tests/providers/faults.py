"""Helpers that make one call to a faulty upstream and check the failure."""

from typing import Any

import pytest

from tests.support.backend_calls import KEY, Outcome, make, make_call, routed
from tests.support.upstream import Upstream, Verb
from tollkeeper.core.errors import TollkeeperError

BOTH = pytest.mark.parametrize("streamed", [False, True])


async def fault(
    verb: Verb, *, streamed: bool = False, deadline_s: float = 10, **settings: Any
) -> Outcome:
    """Makes one call to an upstream with this fault and returns the outcome."""
    async with Upstream(verb) as upstream, routed(upstream.url, **settings) as backend:
        outcome = await make(backend, make_call(streamed=streamed), deadline_s=deadline_s)
        assert len(upstream.requests) == 1
        return outcome


def check_failure(
    outcome: Outcome, error: type[TollkeeperError], *, charged: bool, text: str = ""
) -> None:
    assert type(outcome.error) is error
    assert outcome.error.charged is charged
    assert outcome.text() == text
    assert outcome.accepted is bool(text)
    assert KEY not in outcome.error.message
    assert "127.0.0.1" not in outcome.error.message
