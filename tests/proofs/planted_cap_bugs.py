"""Lists planted bugs in daily, weekly and monthly caps, and the tests that must catch them."""

from tests.proofs.bug import Bug, SqlBug

_DECISION = ("domain/test_caps.py", "domain/test_decide.py")
_ON_DATABASE = ("services/ledger/test_period_caps.py",)
_ROTATED = ("services/ledger/test_period_cap_changes.py",)

CAP_BUGS = {
    "a period cap is checked outside of the batch": Bug(
        "AccountBatch._refuse_by_period_cap",
        "cap = self.period_caps[subject, period]",
        "cap = self.state.period_caps[subject, period]",
        _DECISION,
    ),
    "a key's cap does not count the holds of its calls": Bug(
        "caps_of",
        "subjects: tuple[CapSubject, ...] = (None, project_id, first_key_id)",
        "subjects: tuple[CapSubject, ...] = (None, project_id)",
        _DECISION,
    ),
    "a reset forgets holds that were made while the clock ran ahead": SqlBug(
        "_MOVE",
        "least(cap_spending_day(NULL, held_at), %(today)s::integer) AS day",
        "least(cap_spending_day(NULL, held_at), %(today)s::integer - 31) AS day",
        ("services/ledger/test_cap_reset.py",),
    ),
    "a settlement during a reset freezes the caps again": Bug(
        "Caps.cap_reset",
        "await cap_resets.correct_unfolded_months(connection, organization_id)",
        "",
        ("services/ledger/test_cap_reset.py",),
    ),
    "weeks begin on Sunday": Bug(
        "_DAYS_OF_WEEK_0_BEFORE_1970",
        "3",
        "4",
        ("domain/test_caps.py",),
    ),
    "a released hold stays in its period": Bug(
        "PeriodCap.with_resolved",
        "held_picousd=cap.held_picousd - hold",
        "held_picousd=cap.held_picousd - (hold if spent else 0)",
        ("proofs/test_simulation.py",),
    ),
    "a settlement counts in whatever period is current": Bug(
        "PeriodCap.with_resolved",
        "if cap.number != number:",
        "if cap.number < number:",
        ("proofs/test_simulation.py",),
    ),
    "a period goes back with the clock": Bug(
        "PeriodCap.in_period",
        "if number <= self.number:",
        "if number == self.number:",
        ("domain/test_caps.py",),
    ),
    "a settlement counts on the day of its end": SqlBug(
        "_READ_ENDED",
        "cap_spending_day(r.spending_day, r.held_at)",
        "cap_spending_day(NULL, clock_timestamp())",
        _ON_DATABASE,
    ),
    "a rotated key begins at zero": SqlBug(
        "project_keys:replace",
        "SET first_key_id = coalesce(o.first_key_id, o.id) FROM",
        "SET first_key_id = NULL FROM",
        _ROTATED,
    ),
    "a key that was rotated twice begins at zero": SqlBug(
        "project_keys:replace",
        "SET first_key_id = coalesce(o.first_key_id, o.id) FROM",
        "SET first_key_id = o.id FROM",
        _ROTATED,
    ),
    "the unspent part of a hold is not returned to its caps": Bug(
        "write_states_statements",
        "return write_states, *period_caps.write_statements(states)",
        "return (write_states,)",
        _ON_DATABASE,
    ),
    "a hold on a clock that was set back forgets its day": Bug(
        "_other_periods",
        "None if state.spending_day == today else state.spending_day",
        "None",
        _ON_DATABASE,
    ),
    "a new cap counts unfolded amounts twice": SqlBug(
        "cap_counts:_AMOUNTS",
        "FILTER (WHERE d.reservation_id IS NULL OR u.kind IS NOT NULL), 0) AS held,"
        " coalesce(sum(d.settled + coalesce(o.amount, 0)) FILTER (WHERE u.kind IS NULL), 0)",
        "FILTER (WHERE d.reservation_id IS NULL), 0) AS held,"
        " coalesce(sum(d.settled + coalesce(o.amount, 0)), 0)",
        ("services/ledger/test_period_cap_races.py",),
    ),
    "a new cap does not count earlier calls": Bug(
        "_write_period_cap",
        "await cap_counts.recount(connection, owner.organization_id, owner.subject_id, cap.period)",
        "pass",
        _ON_DATABASE,
    ),
    "a month that is dropped takes its part of a week along": Bug(
        "drop_month",
        "await note_dropped(connection, month)",
        "",
        ("services/ledger/test_period_cap_months.py",),
    ),
}
