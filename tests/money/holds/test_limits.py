"""Tests a project's own and default limits, and how a new rate changes the tokens in its bucket."""

from uuid import uuid4

import pytest

from tests.support.books import Books
from tollkeeper.core.access import ProjectId
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.money.credit.service import Limit, LimitChange
from tollkeeper.money.holds.rule import RATE_UNITS_PER_REQUEST, Refusal
from tollkeeper.setup.settings import Settings


async def _level(books: Books) -> float:
    """Returns the number of requests in the project's token bucket."""
    rows = await books.sql(
        "SELECT rate_units FROM project_accounts WHERE project_id = %s", books.project
    )
    return int(rows[0][0]) / RATE_UNITS_PER_REQUEST


async def _hold_until_refused(books: Books, most: int) -> int:
    """Returns the number of admitted holds before the rate limit refuses one, at most `most`."""
    for admitted in range(most):
        if (await books.try_hold(0)).refusal is Refusal.RATE:
            return admitted
    return most


async def test_the_default_holds_until_a_project_has_its_own(
    books: Books, settings: Settings
) -> None:
    accounts = books.services.accounts
    default_rate = Limit(settings.limits.requests_per_minute, is_default=True)
    default_concurrency = Limit(settings.limits.concurrency, is_default=True)
    found = await accounts.limit_show(books.project)
    assert (found.requests_per_minute, found.concurrency) == (default_rate, default_concurrency)
    found = await accounts.limit_set(books.project, requests_per_minute=7)
    assert found.requests_per_minute == Limit(7, is_default=False)
    assert found.concurrency == default_concurrency
    found = await accounts.limit_set(books.project, concurrency=3)
    assert found.requests_per_minute == Limit(7, is_default=False)
    assert found.concurrency == Limit(3, is_default=False)
    assert await accounts.limit_show(books.project) == found
    found = await accounts.limit_set(books.project, requests_per_minute="default")
    assert found.requests_per_minute == default_rate
    assert found.concurrency == Limit(3, is_default=False)


async def test_a_lower_rate_holds_at_once(books: Books) -> None:
    await books.hold(0)
    await books.services.accounts.limit_set(books.project, requests_per_minute=3)
    assert await _level(books) <= 3
    assert await _hold_until_refused(books, 10) == 3


async def test_a_lower_rate_takes_the_old_burst_away_for_good(books: Books) -> None:
    await books.services.accounts.limit_set(books.project, requests_per_minute=2)
    assert await _hold_until_refused(books, 10) == 2
    await books.services.accounts.limit_set(books.project, requests_per_minute=100_000)
    assert await _level(books) < 1


async def test_a_quiet_project_has_its_whole_burst_at_a_higher_rate_too(books: Books) -> None:
    await books.services.accounts.limit_set(books.project, requests_per_minute=1)
    await books.services.accounts.limit_set(books.project, requests_per_minute=5)
    assert await _hold_until_refused(books, 10) == 5


async def test_concurrency_counts_live_holds(books: Books) -> None:
    accounts = books.services.accounts
    first = await books.hold(0)
    await books.hold(0)
    found = await accounts.limit_set(books.project, concurrency=2)
    assert found.live_holds == 2
    assert (await books.try_hold(0)).refusal is Refusal.CONCURRENCY
    await books.release(first)
    assert (await accounts.limit_show(books.project)).live_holds == 1
    await books.hold(0)
    await books.assert_right()


@pytest.mark.parametrize("change", [0, -1, 10_000_001])
async def test_nonsense_is_refused(books: Books, change: LimitChange) -> None:
    with pytest.raises(InvalidRequest):
        await books.services.accounts.limit_set(books.project, requests_per_minute=change)
    with pytest.raises(InvalidRequest):
        await books.services.accounts.limit_set(books.project, concurrency=change)


async def test_unknown_projects_are_not_found(books: Books) -> None:
    unknown = ProjectId(uuid4())
    with pytest.raises(NotFound):
        await books.services.accounts.limit_show(unknown)
    with pytest.raises(NotFound):
        await books.services.accounts.limit_set(unknown, concurrency=1)
