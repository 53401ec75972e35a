"""Tests that a provider's bill is read exactly, and compared with the usage of its backend in the ledger."""

import io
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace as change

from tests.support.activity_records import record_of, rolled_up, written
from tests.support.books import USD, Books
from tests.support.tables import each
from tollkeeper.core.catalog import Catalog, Route
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.core.usage import Usage
from tollkeeper.money.holds.rule import ADMITTED
from tollkeeper.money.holds.values import Hold
from tollkeeper.reports.bills import service as comparison
from tollkeeper.reports.bills.service import (
    Bill,
    BillColumns,
    BillComparison,
    BillReconciliation,
    Figure,
    read_bill,
)
from tollkeeper.reports.bills.store import Tolerance

_COLUMNS = BillColumns(
    "date", "model", {Figure.COST: "usd", Figure.INPUT_TOKENS: "in", Figure.OUTPUT_TOKENS: "out"}
)
_HEADER = "date,model,in,out,usd\n"
_DAY = 20_000  # days since 1970: the day of _DATE
_EXACTLY = Tolerance()
_DATE = "2024-10-04"


def _bill(*lines: str, header: str = _HEADER) -> Bill:
    return _read(header + "".join(f"{line}\n" for line in lines))


def _read(text: str, columns: BillColumns = _COLUMNS) -> Bill:
    """Reads all lines, so that tests can compare a bill several times."""
    bill = read_bill(io.StringIO(text, newline=""), columns)
    return replace(bill, lines=list(bill.lines))


# The tests below read the file.


def test_lines_are_read_exactly() -> None:
    bill = _bill(
        f"{_DATE},large,10,2,0.1",
        f"{_DATE}T23:59:59Z,large,1,,0.2",
        f"{_DATE} 12:00:00+00:00,small,5,1,$3",
        "2024-10-05T00:30:00+02:00,large,100,0,1e-15",
        "",
    )
    assert bill.figures == (Figure.COST, Figure.INPUT_TOKENS, Figure.OUTPUT_TOKENS)
    assert bill.lines == [
        (_DAY, "large", [Decimal("0.1"), Decimal(10), Decimal(2)]),
        (_DAY, "large", [Decimal("0.2"), Decimal(1), Decimal(0)]),
        (_DAY, "small", [Decimal(3), Decimal(5), Decimal(1)]),
        (_DAY, "large", [Decimal("1e-15"), Decimal(100), Decimal(0)]),
    ]


@each(
    ("text", "said"),
    [
        ("", "The file is empty"),
        (_HEADER, "no lines"),
        ("date,model,in,out\nx\n", "no column usd; its header is: date, model, in, out"),
        ("date,model,in,out,usd,usd\n", "several columns usd"),
        (f"{_HEADER}{_DATE},m,1,1\n", "Line 2 has 4 columns, the header has 5"),
        (f"{_HEADER}{_DATE},m,1,1,1\n{_DATE},m,1,1.5,1\n", "Line 3 column out: '1.5' is not"),
        (f"{_HEADER}{_DATE},m,1,-1,1\n", "Line 2 column out: '-1' is not a number"),
        (f"{_HEADER}{_DATE},m,1,1,cheap\n", "Line 2 column usd: 'cheap' is not an amount"),
        (f"{_HEADER}{_DATE},m,1,1,nan\n", "Line 2 column usd: 'nan' is not an amount"),
        (f"{_HEADER}{_DATE},m,1,1,3e99\n", "Line 2 column usd: '3e99' has more than 18 digits"),
        (f"{_HEADER}{_DATE},m,1,1,1e-41\n", "Line 2 column usd: '1e-41' has more than 18"),
        (f"{_HEADER}4 October,m,1,1,1\n", "Line 2 column date: '4 October' is not a day"),
        (f"{_HEADER}{_DATE},,1,1,1\n", "Line 2 column model: there is no model"),
        (f'{_HEADER}{_DATE},"m,1,1,1\n', "Line 2 is not CSV"),
        (f'{_HEADER}{_DATE},m"m",1,1,1\n"a"b', "Line 3 is not CSV"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _read(text)
    assert said in refused.value.message
    assert refused.value.param in ("file", "columns")


def test_text_of_another_encoding_is_refused(tmp_path: Any) -> None:
    file = tmp_path / "bill.csv"
    file.write_bytes(_HEADER.encode() + f"{_DATE},m".encode() + b"\xff,1,1,1\n")
    with (
        file.open(encoding="utf-8", newline="") as lines,
        pytest.raises(InvalidRequest, match="is not UTF-8"),
    ):
        list(read_bill(lines, _COLUMNS).lines)


def test_a_byte_order_mark_is_no_part_of_the_name() -> None:
    assert _bill(f"{_DATE},m,1,1,1", header="\ufeff" + _HEADER).lines


# The tests below compare a bill with the ledger.


async def _used(
    books: Books, backend: str, model: str, cost: int | None, day: int = _DAY, **fields: Any
) -> None:
    """Records a call that the backend answered on this day. Without a cost, it is unsettled by default."""
    settlement = "unsettled" if cost is None else "settled"
    values = {
        "usage": Usage(10, 4, 3),
        "settlement": settlement,
        "cost_picousd": cost,
        "backend": backend,
        "model": model,
        "started_at_ms": day * 86_400_000 + 5,
        **fields,
    }
    await rolled_up(books, record_of(books, **values))


async def _compare(
    books: Books,
    backend: str,
    bill: Bill,
    *,
    names: Mapping[str, str] | None = None,
    tolerance: Tolerance = _EXACTLY,
    **options: Any,
) -> BillComparison:
    return await BillReconciliation(books.services.database).ledger_reconcile(
        backend,
        bill,
        catalog=options.pop("catalog", Catalog(())),
        names=names or {},
        tolerance=tolerance,
        **options,
    )


def _kinds(found: BillComparison) -> list[tuple[int, str, str]]:
    return [(entry.day, entry.model, entry.kind) for entry in found.days]


async def test_a_bill_that_says_what_the_books_say(books: Books) -> None:
    backend = f"b-{books.project}"
    for _ in range(2):
        await _used(books, backend, "acme/large", USD // 3)
    # A bill does not contain calls that were not charged.
    await _used(books, backend, "acme/large", 0, settlement="released")
    await _used(books, backend, "acme/large", None, settlement="none")
    bill = _bill(f"{_DATE},large,20,8,0.666666666666")
    found = await _compare(books, backend, bill, names={"acme/large": "large"})
    assert _kinds(found) == [(_DAY, "large", "same")]
    assert found.differences == []
    near = _bill(f"{_DATE},large,20,8,0.6666666666661")
    names = {"acme/large": "large"}
    assert len((await _compare(books, backend, near, names=names)).differences) == 1
    close = Tolerance(usd=Decimal("0.000000000001"))
    found = await _compare(books, backend, near, names=names, tolerance=close)
    assert found.differences == []


async def test_what_differs_and_what_is_missing_on_a_side(books: Books) -> None:
    backend = f"b-{books.project}"
    await _used(books, backend, "a", USD)
    await _used(books, backend, "a", None)
    await _used(books, backend, "b", USD, day=_DAY + 1)
    await _used(books, backend, "a", USD, day=_DAY + 9)
    await _used(books, f"other-{books.project}", "a", USD)
    bill = _bill(f"{_DATE},a,20,9,1", f"{_DATE},c,1,1,1", "2024-10-06,a,0,0,0")
    found = await _compare(books, backend, bill)
    assert _kinds(found) == [
        (_DAY, "a", "differs"),
        (_DAY, "c", "missing in the ledger"),
        (_DAY + 1, "b", "missing in the bill"),
        (_DAY + 2, "a", "missing in the ledger"),
    ]
    first = found.differences[0]
    assert first.unsettled_requests == 1
    assert [(pair.figure, pair.difference, pair.differs) for pair in first.figures] == [
        (Figure.COST, Decimal(0), False),
        (Figure.INPUT_TOKENS, Decimal(0), False),
        (Figure.OUTPUT_TOKENS, Decimal(1), True),
    ]
    totals = {pair.figure: (pair.bill, pair.ledger) for pair in found.totals}
    assert totals[Figure.COST] == (Decimal(2), Decimal(2))
    wider = await _compare(books, backend, bill, days=(None, _DAY + 9))
    assert (_DAY + 9, "a", "missing in the bill") in _kinds(wider)
    narrow = await _compare(books, backend, bill, days=(_DAY + 1, _DAY + 1))
    assert _kinds(narrow) == [(_DAY + 1, "b", "missing in the bill")]


async def test_amounts_are_added_and_compared_exactly(books: Books) -> None:
    """PostgreSQL's sums of amounts are as exact as sums of integers."""
    backend = f"b-{books.project}"
    await _used(books, backend, "m", USD)
    amounts = [Decimal(number).scaleb(-30) for number in (10**30, -(7**35), 3**60, -1)]
    found = await _compare(
        books, backend, _bill(*(f"{_DATE},m,0,0,{amount:f}" for amount in amounts))
    )
    exact = sum(int(amount.scaleb(30)) for amount in amounts)
    (cost,) = (pair for pair in found.totals if pair.figure == Figure.COST)
    assert cost.bill == Decimal(f"{exact}e-30")
    assert cost.difference == Decimal(f"{exact - 10**30}e-30")


@pytest.mark.parametrize(
    ("tolerance", "bill", "same"),
    [
        (Tolerance(), "1.000", True),
        (Tolerance(), "1.000000000000000000001", False),
        (Tolerance(usd=Decimal("0.01")), "1.01", True),
        (Tolerance(usd=Decimal("0.01")), "1.0100001", False),
        (Tolerance(part=Decimal("0.01")), "0.99", True),
        (Tolerance(part=Decimal("0.01")), "1.01", True),
        (Tolerance(part=Decimal("0.01")), "0.989", False),
    ],
)
async def test_a_tolerance(books: Books, tolerance: Tolerance, bill: str, same: bool) -> None:
    backend = f"b-{books.project}"
    await _used(books, backend, "m", USD)
    found = await _compare(books, backend, _bill(f"{_DATE},m,10,4,{bill}"), tolerance=tolerance)
    assert (found.differences == []) is same
    # A tolerance in USD does not apply to tokens.
    more = await _compare(books, backend, _bill(f"{_DATE},m,10,5,1"), tolerance=tolerance)
    assert len(more.differences) == 1


async def test_a_bill_has_a_bound(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "ENTRIES_MAX", 2)
    backend = f"b-{books.project}"
    await _used(books, backend, "m", USD)
    bill = _bill(*(f"{_DATE},model-{number},1,1,1" for number in range(3)))
    with pytest.raises(InvalidRequest, match="more than 2 pairs of day and model"):
        await _compare(books, backend, bill)


async def test_every_figure_has_its_own_sum(books: Books) -> None:
    backend = f"b-{books.project}"
    usage = Usage(100, 7, 30, cache_write_tokens=8, cache_write_1h_tokens=2)
    await _used(books, backend, "a", 5, usage=usage, reported_cost_picousd=6)
    columns = BillColumns("date", "model", {figure: figure.value for figure in Figure})
    header = ",".join(["date", "model", *Figure])
    text = f"{header}\n{_DATE},a,1,100,60,30,10,7,0.000000000006\n"
    bill = _read(text, columns)
    assert (await _compare(books, backend, bill, reported=True)).differences == []
    (only,) = (await _compare(books, backend, bill)).differences
    assert [pair.figure for pair in only.figures if pair.differs] == [Figure.COST]


async def test_the_sums_outlive_the_records_and_count_each_once(books: Books) -> None:
    backend = f"b-{books.project}"
    record = record_of(
        books,
        settlement="settled",
        cost_picousd=USD,
        backend=backend,
        model="a",
        started_at_ms=_DAY * 86_400_000,
    )
    # The record is written twice, as after a commit in doubt.
    for _ in range(2):
        await written(books.services.activity, record)
    await books.sql("DELETE FROM activity WHERE request_id = %s::uuid", record.request_id)
    found = await _compare(books, backend, _bill(f"{_DATE},a,10,20,1"))
    assert _kinds(found) == [(_DAY, "a", "same")]


async def test_the_largest_and_the_smallest_amounts_are_compared_exactly(books: Books) -> None:
    backend = f"b-{books.project}"
    await _used(books, backend, "a", 1)
    lines = [f"{_DATE},a,5,2,{amount}" for amount in ("9" * 18 + "." + "9" * 40, "1e-40")]
    within = Tolerance(part=Decimal("0." + "9" * 25))
    found = await _compare(books, backend, _bill(*lines), tolerance=within)
    (total,) = (pair for pair in found.totals if pair.figure == Figure.COST)
    assert total.bill == Decimal("1e18")
    assert f"{total.difference:f}" == "9" * 18 + "." + "9" * 12 + "0" * 28


async def test_an_alternative_of_a_model_has_its_own_name_on_the_bill(books: Books) -> None:
    backend, other = f"b-{books.project}", f"alternative-{books.project}"
    (declared,) = books.services.catalog.catalog.models[:1]
    first = replace(declared, id="acme/large", backend=backend, upstream_model="large-1")
    second = replace(first, backend=other, upstream_model="vendor.large")
    model = replace(first, routes=(Route(first, 0, 1), Route(second, 1, 1)))
    for name in (backend, other):
        await _used(books, name, "acme/large", USD)
    for name, theirs in ((backend, "large-1"), (other, "vendor.large")):
        bill = _bill(f"{_DATE},{theirs},10,4,1")
        found = await _compare(books, name, bill, catalog=Catalog((model,)))
        assert _kinds(found) == [(_DAY, theirs, "same")]


def _model_of(books: Books) -> str:
    """Returns a model that no other test uses, because a call without a record is found by its model."""
    return f"model-{books.project}"


async def _left_unsettled(books: Books, backend: str | None) -> Hold:
    """Makes a call that ends unsettled. Without `backend`, the call has no record, as if its process had
    died before it wrote one."""
    hold = change(books.hold_of(5 * USD), model=_model_of(books))
    assert await books.services.ledger.hold(hold) == ADMITTED
    await books.leave_unsettled(hold)
    if backend is not None:
        await _record_as_unsettled(books, hold, backend)
    return hold


async def _record_as_unsettled(books: Books, hold: Hold, backend: str | None) -> None:
    record = record_of(
        books,
        request_id=str(hold.id),
        model=hold.model,
        settlement="unsettled",
        usage=None,
        backend=backend,
        started_at_ms=await _held_at_ms(books, hold),
    )
    await written(books.services.activity, record)


async def _held_at_ms(books: Books, hold: Hold) -> int:
    ((found,),) = await books.sql(
        "SELECT (extract(epoch FROM held_at) * 1000)::bigint FROM reservations WHERE id = %s",
        hold.id,
    )
    return int(found)


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_call_that_was_resolved_by_hand_is_compared(books: Books, recorded: bool) -> None:
    backend = f"b-{books.project}"
    model = replace(books.services.catalog.catalog.models[0], id=_model_of(books), backend=backend)
    resolve = books.services.reconciliation.ledger_resolve
    holds = [await _left_unsettled(books, backend if recorded else None) for _ in range(3)]
    await resolve(holds[0].id, settle_picousd=7 * USD)
    await resolve(holds[1].id, settle_picousd=None)
    day = date(1970, 1, 1) + timedelta(milliseconds=await _held_at_ms(books, holds[0]))
    columns = BillColumns("date", "model", {Figure.REQUESTS: "calls", Figure.COST: "usd"})
    text = f"date,model,calls,usd\n{day},{model.upstream_model},2,7\n"
    bill = _read(text, columns)
    (only,) = (await _compare(books, backend, bill, catalog=Catalog((model,)))).days
    # The third call is still unsettled. It counts, because the backend may have charged for it.
    assert (only.kind, only.unsettled_requests) == ("same", 1)
    for hold in holds[2:]:
        await resolve(hold.id, settle_picousd=None)
    (only,) = (await _compare(books, backend, bill, catalog=Catalog((model,)))).days
    assert [(pair.ledger, pair.differs) for pair in only.figures] == [
        (Decimal(1), True),
        (Decimal(7), False),
    ]
    reported = await _compare(books, backend, bill, catalog=Catalog((model,)), reported=True)
    assert [pair.ledger for pair in reported.totals] == [Decimal(1), Decimal(0)]


async def test_a_settlement_that_was_written_late_is_compared(books: Books) -> None:
    """The call ended before its settlement was written, so its record says that it is unsettled."""
    backend = f"b-{books.project}"
    model = replace(books.services.catalog.catalog.models[0], id=_model_of(books), backend=backend)
    hold = change(books.hold_of(5 * USD), model=model.id)
    assert await books.services.ledger.hold(hold) == ADMITTED
    await _record_as_unsettled(books, hold, backend)
    await books.settle(hold, 3 * USD)
    day = date(1970, 1, 1) + timedelta(milliseconds=await _held_at_ms(books, hold))
    columns = BillColumns("date", "model", {Figure.REQUESTS: "calls", Figure.COST: "usd"})
    bill = _read(f"date,model,calls,usd\n{day},{model.upstream_model},1,3\n", columns)
    (only,) = (await _compare(books, backend, bill, catalog=Catalog((model,)))).days
    assert (only.kind, only.unsettled_requests) == ("same", 0)


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_day_of_released_calls_is_missing_nowhere(books: Books, recorded: bool) -> None:
    backend = f"b-{books.project}"
    model = replace(books.services.catalog.catalog.models[0], id=_model_of(books), backend=backend)
    hold = await _left_unsettled(books, backend if recorded else None)
    await books.services.reconciliation.ledger_resolve(hold.id, settle_picousd=None)
    day = await _held_at_ms(books, hold) // 86_400_000
    bill = _bill(f"{_DATE},x,1,1,1")
    found = await _compare(books, backend, bill, catalog=Catalog((model,)), days=(None, day))
    assert _kinds(found) == [(_DAY, "x", "missing in the ledger")]


async def test_a_call_that_was_not_sent_is_on_no_bill(books: Books) -> None:
    """The gateway failed between the hold and the dispatch, so the record names no backend."""
    backend = f"b-{books.project}"
    model = replace(books.services.catalog.catalog.models[0], id=_model_of(books), backend=backend)
    hold = await _left_unsettled(books, None)
    await _record_as_unsettled(books, hold, None)
    day = await _held_at_ms(books, hold) // 86_400_000
    bill, days = _bill(f"{_DATE},x,1,1,1"), (None, day)
    nothing = [(_DAY, "x", "missing in the ledger")]
    found = await _compare(books, backend, bill, catalog=Catalog((model,)), days=days)
    assert _kinds(found) == nothing
    await books.services.reconciliation.ledger_resolve(hold.id, settle_picousd=None)
    found = await _compare(books, backend, bill, catalog=Catalog((model,)), days=days)
    assert _kinds(found) == nothing


async def test_a_backend_that_nobody_knows_is_refused(books: Books) -> None:
    with pytest.raises(NotFound, match="backend nowhere"):
        await _compare(books, "nowhere", _bill(f"{_DATE},a,1,1,1"))
