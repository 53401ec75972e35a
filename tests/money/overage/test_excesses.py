"""Tests which models have exceeded their holds, as all processes of one database know it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest
from msgspec.structs import replace

from tests.support.books import Books
from tests.support.ledger import Process, held, make_tenant, run, settlement
from tollkeeper.core.errors import NotFound, Unavailable
from tollkeeper.money.overage import service as excesses_module
from tollkeeper.money.overage.rule import Excess
from tollkeeper.money.overage.service import Excesses

NOW = 1_800_000_000
USED = 10


@pytest.fixture
def model() -> str:
    """Returns a name that no other test uses."""
    return f"example/{uuid4()}"


@pytest.fixture(autouse=True)
async def no_excesses(process: Process) -> AsyncIterator[None]:
    yield
    await run(process.database, "DELETE FROM observed_excesses")


def exceeded(model: str, hold: int, cost: int, backend: str = "b", at: int = NOW) -> Excess:
    return Excess(model, backend, hold, cost, at)


async def settle(process: Process, *cases: Excess) -> None:
    """Settles one call for each case, all in one batch."""
    tenant = await make_tenant(process.database, 1000)
    holds = [await held(process, tenant, USED) for _ in cases]
    results = [
        process.ledger.resolve(replace(settlement(hold, USED), excess=case), hold)
        for hold, case in zip(holds, cases, strict=True)
    ]
    assert all(await asyncio.gather(*results))


def amounts(cases: Sequence[Excess]) -> list[tuple[str, int, int]]:
    return sorted((case.backend, case.hold_picousd, case.cost_picousd) for case in cases)


async def test_a_case_is_known_here_at_once_and_elsewhere_after_a_load(
    process: Process, other_process: Process, model: str
) -> None:
    here, elsewhere = process.ledger.excesses, other_process.ledger.excesses
    await elsewhere.load()
    await settle(process, exceeded(model, 10, 25))
    assert amounts(here.of(model)) == [("b", 10, 25)]
    assert elsewhere.of(model) == ()
    await elsewhere.load()
    assert amounts(elsewhere.of(model)) == [("b", 10, 25)]
    assert elsewhere.of("another") == ()


async def test_the_largest_case_of_a_day_is_kept(process: Process, model: str) -> None:
    await settle(
        process,
        exceeded(model, 10, 20),
        exceeded(model, 10, 25),
        exceeded(model, 1000, 2000),
        exceeded(model, 10, 11, backend="a"),
        exceeded(model, 0, 5, backend="free"),
    )
    largest = [("a", 10, 11), ("b", 10, 25), ("free", 0, 5)]
    excesses = process.ledger.excesses
    await excesses.load()
    assert amounts(excesses.of(model)) == largest
    await settle(process, exceeded(model, 10**6, 2 * 10**6))
    await excesses.load()
    assert amounts(excesses.of(model)) == largest
    await settle(process, exceeded(model, 2, 6))
    await excesses.load()
    assert amounts(excesses.of(model)) == [("a", 10, 11), ("b", 2, 6), ("free", 0, 5)]


async def test_cases_of_earlier_days_count_until_they_are_too_old(
    process: Process, model: str
) -> None:
    for days, cost in ((29, 900), (31, 9000)):
        await settle(process, exceeded(model, 10, cost))
        await run(
            process.database,
            "UPDATE observed_excesses SET noted_at = noted_at - %s * interval '1 day',"
            " day = day - %s WHERE day = (now() AT TIME ZONE 'UTC')::date",
            days,
            days,
        )
    await settle(process, exceeded(model, 10, 12))
    clocked = Excesses(process.database, clock=lambda: NOW)
    await clocked.load()
    recent, old = clocked.of(model)
    assert (recent.cost_picousd, old.cost_picousd) == (12, 900)
    # The age counts, because the clocks of the process and of the database may differ.
    assert (recent.halvings(NOW), old.halvings(NOW)) == (0, 29)


async def test_a_repeated_case_is_not_written_again(process: Process, model: str) -> None:
    excesses = process.ledger.excesses
    case = exceeded(model, 10, 25)
    assert excesses.is_news(case)
    excesses.note(case)
    assert not excesses.is_news(case)
    assert not excesses.is_news(exceeded(model, 100, 200))
    assert excesses.is_news(exceeded(model, 100, 300))
    assert excesses.is_news(exceeded(model, 100, 200, backend="another"))
    # Once an hour, so that it does not fade.
    assert not excesses.is_news(replace(case, at=NOW + 3599))
    assert excesses.is_news(replace(case, at=NOW + 3600))


async def test_two_processes_may_note_the_same_models_at_once(
    process: Process, other_process: Process, model: str
) -> None:
    names = [f"{model}-{number}" for number in range(20)]
    async with asyncio.timeout(20):
        await asyncio.gather(
            *(settle(process, *(exceeded(name, 10, 20 + n) for name in names)) for n in range(5)),
            *(
                settle(other_process, *(exceeded(name, 10, 40 - n) for name in reversed(names)))
                for n in range(5)
            ),
        )
    await process.ledger.excesses.load()
    assert [amounts(process.ledger.excesses.of(name)) for name in names] == [[("b", 10, 40)]] * 20


async def test_what_is_forgotten_is_recorded(books: Books, model: str) -> None:
    excesses = books.services.excesses
    await books.sql(
        "INSERT INTO observed_excesses SELECT %s, b, '2026-11-01'::date + d, 1, 2, now()"
        " FROM unnest('{a,b}'::text[]) AS b, generate_series(1, 2) AS d",
        model,
    )
    await excesses.overage_forget(model, "a")
    await excesses.load()
    assert amounts(excesses.of(model)) == [("b", 1, 2)]
    await excesses.overage_forget(model)
    await excesses.load()
    assert excesses.of(model) == ()
    for backend in (None, "b"):
        with pytest.raises(NotFound, match="has exceeded its hold lately"):
            await excesses.overage_forget(model, backend)
    page = await books.services.audit.audit_list(object_id=model)
    changes = [(entry.change.operation, entry.change.before) for entry in page.entries]
    assert changes == [
        ("overage_forget", {"backend": None, "days": 2}),
        ("overage_forget", {"backend": "a", "days": 2}),
    ]


async def test_a_load_has_a_deadline(
    process: Process, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cases that were known before stay known."""
    monkeypatch.setattr(excesses_module, "_LOAD_TIMEOUT_S", 0.2)
    excesses = Excesses(process.database)
    await settle(process, exceeded(model, 10, 25))
    await excesses.load()
    async with process.database.transaction() as connection:
        await connection.execute("LOCK TABLE observed_excesses IN ACCESS EXCLUSIVE MODE")
        for read in (excesses.load, Excesses(process.database).load_first):
            with pytest.raises(Unavailable):
                await asyncio.wait_for(read(), timeout=5)
    assert amounts(excesses.of(model)) == [("b", 10, 25)]


async def test_all_calls_share_the_first_load(process: Process) -> None:
    loads = 0

    class Counting(Excesses):
        async def overage_models(self) -> Sequence[Excess]:
            nonlocal loads
            loads += 1
            await asyncio.sleep(0.01)
            return []

    excesses = Counting(process.database)
    await asyncio.gather(*(excesses.load_first() for _ in range(50)))
    assert excesses.loaded
    assert loads == 1


async def test_calls_do_not_wait_for_failed_loads_of_other_calls(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process that cannot read the table refuses all its waiting calls after one deadline."""
    monkeypatch.setattr(excesses_module, "_LOAD_TIMEOUT_S", 0.3)
    excesses = Excesses(process.database)
    async with process.database.transaction() as connection:
        await connection.execute("LOCK TABLE observed_excesses IN ACCESS EXCLUSIVE MODE")
        async with asyncio.timeout(1.5):
            results = await asyncio.gather(
                *(excesses.load_first() for _ in range(20)), return_exceptions=True
            )
    assert [type(result) for result in results] == [Unavailable] * 20
    assert not excesses.loaded
    # The next call tries again.
    await excesses.load_first()
    assert excesses.loaded
