"""Lists planted bugs in caps, and the tests that must catch them."""

from tests.proofs.bug import Bug, SqlBug

_DECISION = ("money/caps/test_rule.py", "money/holds/test_decide.py")
_ON_DATABASE = ("money/caps/test_caps.py",)
_ROTATED = ("money/caps/test_cap_changes.py",)

CAP_BUGS = {
    "a cap is checked outside of the batch": Bug(
        "AccountBatch._refuse_by_caps",
        "cap = self.caps[cap_key]",
        "cap = self.state.caps[cap_key]",
        _DECISION,
    ),
    "a call that a cap covers exactly is refused": Bug(
        "AccountBatch._refuse_by_caps",
        "request.hold_picousd > cap.left_picousd",
        "request.hold_picousd >= cap.left_picousd",
        _DECISION,
    ),
    "a key's cap does not count the holds of its calls": Bug(
        "caps_of",
        "subjects: tuple[CapSubject, ...] = (None, project_id, first_key_id)",
        "subjects: tuple[CapSubject, ...] = (None, project_id)",
        _DECISION,
    ),
    "weeks begin on Sunday": Bug(
        "_DAYS_OF_WEEK_0_BEFORE_1970",
        "3",
        "4",
        ("money/caps/test_rule.py",),
    ),
    "a released hold stays in its period": SqlBug(
        "COUNT_FOLDED",
        "held = c.held - t.hold",
        "held = c.held - least(t.hold, t.spent)",
        _ON_DATABASE,
    ),
    "a settlement counts on the day of its end": SqlBug(
        "COUNT_FOLDED",
        "cap_period_number(p.period, t.day) AS number",
        "cap_period_number(p.period, utc_day(clock_timestamp())) AS number",
        _ON_DATABASE,
    ),
    "a settlement counts twice in a total": SqlBug(
        "COUNT_FOLDED",
        "settled = c.settled + t.spent",
        "settled = c.settled + t.spent * CASE c.period WHEN 'total' THEN 2 ELSE 1 END",
        _ON_DATABASE,
    ),
    "a total begins again with each month": SqlBug(
        "0100_schema:_SQL",
        "WHEN 'total' THEN 0 END $$; CREATE FUNCTION cap_period_first_day",
        "WHEN 'total' THEN to_char(date '1970-01-01' + day, 'YYYYMM')::integer END $$;"
        " CREATE FUNCTION cap_period_first_day",
        _ON_DATABASE,
    ),
    "a period that the clock comes back to begins at zero": Bug(
        "HoldTransaction.lock",
        "if is_behind:",
        "if is_behind and not capped:",
        _ON_DATABASE,
    ),
    "the row of the last period is dropped at midnight": SqlBug(
        "_COUNT_HOLDS",
        "SELECT max(l.number) FROM cap_counters l",
        "SELECT max(l.number) + 1 FROM cap_counters l",
        _ON_DATABASE,
    ),
    "a process looks for caps only where it has seen some": Bug(
        "HoldTransaction.lock",
        "if not capped:",
        "if not capped or not with_caps:",
        ("money/caps/test_cap_work.py", "money/caps/test_caps.py"),
    ),
    "an organization with caps is not marked": SqlBug(
        "_mark_capped",
        "EXISTS (SELECT FROM caps c WHERE c.organization_id = a.organization_id)",
        "false",
        _ON_DATABASE,
    ),
    "holds are not counted in caps": Bug(
        "write_holds_statements",
        "return (write_holds, *caps.write_statements(accounts.states))",
        "return (write_holds,)",
        _ON_DATABASE,
    ),
    "a rotated key begins at zero": SqlBug(
        "tenants.project_keys_store:replace",
        "SET first_key_id = coalesce(o.first_key_id, o.id) FROM",
        "SET first_key_id = NULL FROM",
        _ROTATED,
    ),
    "a key that was rotated twice begins at zero": SqlBug(
        "tenants.project_keys_store:replace",
        "SET first_key_id = coalesce(o.first_key_id, o.id) FROM",
        "SET first_key_id = o.id FROM",
        _ROTATED,
    ),
    "a new cap counts unfolded amounts twice": SqlBug(
        "money.caps.counts:_with_sums",
        "FILTER (WHERE d.reservation_id IS NULL OR u.kind IS NOT NULL), 0) AS held,"
        " coalesce(sum(d.settled + coalesce(o.amount, 0)) FILTER (WHERE u.kind IS NULL), 0)",
        "FILTER (WHERE d.reservation_id IS NULL), 0) AS held,"
        " coalesce(sum(d.settled + coalesce(o.amount, 0)), 0)",
        ("money/caps/test_cap_races.py",),
    ),
    "a new cap does not count earlier calls": Bug(
        "Caps.cap_set",
        "await cap_counts.recount(connection, organization_id, owner.subject_id, period)",
        "pass",
        _ON_DATABASE,
    ),
    "a month that is dropped takes its part of a week along": Bug(
        "drop_month",
        "await note_dropped(connection, month)",
        "",
        ("money/caps/test_cap_months.py",),
    ),
    "a new total forgets dropped months": SqlBug(
        "_RECOUNT",
        "WHERE c.period = 'total'",
        "WHERE c.period = 'all'",
        ("money/caps/test_cap_months.py",),
    ),
}
