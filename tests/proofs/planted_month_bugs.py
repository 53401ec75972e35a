"""Lists planted bugs in ledger months and bill comparison, and the tests that must catch them."""

from tests.proofs.bug import Bug, SqlBug

MONTH_BUGS = {
    # Bugs in the comparison with the request log.
    "a lost call is booked with the key of another tenant": SqlBug(
        "_FIND_STATES",
        "k.id IS NOT NULL",
        "true",
        ("entry/commands/test_ledger_compare_log.py",),
    ),
    "a lost call is booked on the day of the booking": Bug(
        "RequestLogComparison._book",
        "time_from_id=True",
        "",
        ("money/log_comparison/test_log_comparison.py",),
    ),
    # Bugs in the months of the ledger.
    "a close forgets the overage": SqlBug(
        "TOTALS",
        "coalesce(sum(o.amount), 0) AS overage",
        "0 AS overage",
        ("money/months/test_months.py",),
    ),
    "a close is not bound to the one before": Bug(
        "close_digest",
        "hashlib.sha256(previous_digest or _NO_CLOSE_BEFORE)",
        "hashlib.sha256(_NO_CLOSE_BEFORE)",
        ("money/months/test_months.py",),
    ),
    "a month is closed with a hold in it": Bug(
        "LedgerMonths.ledger_close",
        "await _check_resolved(connection, month)",
        "",
        ("money/months/test_months.py",),
    ),
    "a closed month can be changed": Bug(
        "LedgerMonths.ledger_close",
        "await ledger_months.seal_month(connection, month)",
        "",
        ("money/months/test_months.py",),
    ),
    "a cost is reported on the day of its settlement": SqlBug(
        "_RESOLVE",
        "utc_day(held_at) AS admitted",
        "utc_day(clock_timestamp()) AS admitted",
        ("money/test_cost_days.py",),
    ),
    "a cost is added to the report of a closed month": SqlBug(
        "_RESOLVE",
        "ledger_open_day() AS open_day",
        "0 AS open_day",
        ("money/test_cost_days.py",),
    ),
    "a close does not wait for settlements": Bug(
        "write_close",
        'await connection.execute("LOCK TABLE cost_rollup IN SHARE MODE")',
        "",
        ("money/test_cost_days.py",),
    ),
    "a month that is not proven is dropped": Bug(
        "LedgerMonths.ledger_check_drop",
        "if ledger_month.proven is None:",
        "if ledger_month.proven is None and ledger_month.close is None:",
        ("money/months/test_month_drop.py",),
    ),
    "a settlement of a dropped month is charged again": SqlBug(
        "find_missing",
        "AND NOT EXISTS (SELECT FROM ledger_closes WHERE month = ledger_month(w.id))",
        "",
        ("money/months/test_month_drop.py",),
    ),
    "a drop forgets unfolded amounts": Bug(
        "LedgerMonths._drop",
        "await self._bulk_resolution.fold(unfolded)",
        "",
        ("money/months/test_month_drop.py",),
    ),
    "verify skips a slice of organizations": Bug(
        "_pages_of_organizations",
        "yield Slice(after=after, end=end)",
        "if after == FIRST_ID or end == LAST_ID:\n    yield Slice(after=after, end=end)",
        ("money/verification/test_verification.py",),
    ),
    "verify skips the ids around the months": Bug(
        "_open_ranges",
        "return [*ranges, (begin, LAST_ID)]",
        "return ranges",
        ("money/verification/test_verification.py",),
    ),
    "verify does not ask the totals of closed months": SqlBug(
        "_RESERVED",
        "settled + overage, overage",
        "0, 0",
        ("money/months/test_months.py",),
    ),
    # A common mistake with partitions is to add a time to the primary key.
    "a reservation resolves once at each time": SqlBug(
        "0100_schema:_SQL",
        "PRIMARY KEY (organization_id, reservation_id), CONSTRAINT resolutions_not_negative",
        "PRIMARY KEY (organization_id, reservation_id, resolved_at),"
        " CONSTRAINT resolutions_not_negative",
        ("money/months/test_months.py",),
        # These changes remove everything that needs the original primary key.
        also=(
            (
                "0100_schema:_SQL",
                (
                    "ALTER TABLE overages_default ADD CONSTRAINT"
                    " overages_organization_id_reservation_id_fkey FOREIGN KEY (organization_id,"
                    " reservation_id) REFERENCES resolutions_default (organization_id, reservation_id);"
                ),
                "",
            ),
            (
                "0100_schema:_SQL",
                (
                    "EXECUTE format('ALTER TABLE %I ADD FOREIGN KEY (organization_id, reservation_id)"
                    " REFERENCES %I (organization_id, reservation_id)', 'overages_' || suffix,"
                    " 'resolutions_' || suffix);"
                ),
                "",
            ),
        ),
    ),
    "a settlement opens the partitions of all months": SqlBug(
        "_RESOLVE",
        "AND r.id BETWEEN %s::uuid AND %s::uuid",
        "AND %s::uuid <= %s::uuid",
        ("database/test_plans.py",),
    ),
    # Bugs in the comparison with a provider's bill.
    "a bill is added up in floats": SqlBug(
        "_COMPARISON",
        "sum(amount) AS amount FROM bill",
        "sum(amount::double precision)::numeric AS amount FROM bill",
        ("money/test_bill.py",),
    ),
    "calls that were released are on the bill": SqlBug(
        "ROLL_UP_ACTIVITY",
        "AND (settlement = 'unsettled' OR settlement = 'settled' AND prompt_tokens IS NOT NULL)",
        "",
        ("money/test_bill.py",),
    ),
}
