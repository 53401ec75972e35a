"""Bugs in caps by day, week and month, and the tests that must catch them."""

from tests.proofs.bug import Bug

_ADMISSION = "domain/admission.py"
_CAPS = "domain/caps.py"
_ROWS = "storage/period_caps.py"
_CHANGES = "storage/period_cap_changes.py"
_DECISION = ("domain/test_caps.py", "domain/test_decide.py")
_ON_DATABASE = ("services/ledger/test_period_caps.py",)
_ROTATED = ("services/ledger/test_period_cap_changes.py",)

CAP_BUGS = {
    "a period cap is checked outside of the batch": Bug(
        _ADMISSION,
        "        cap = working.period_caps[subject, period]\n",
        "        cap = state.period_caps[subject, period]\n",
        _DECISION,
    ),
    "a key's cap does not count what its calls hold": Bug(
        _CAPS,
        "    subjects: tuple[CapSubject, ...] = (None, project_id, first_key_id)\n",
        "    subjects: tuple[CapSubject, ...] = (None, project_id)\n",
        _DECISION,
    ),
    "weeks begin on Sunday": Bug(
        _CAPS,
        "_DAYS_BEFORE_FIRST = 3\n",
        "_DAYS_BEFORE_FIRST = 4\n",
        ("domain/test_caps.py",),
    ),
    "a released hold stays in its period": Bug(
        _CAPS,
        "            held_picousd=cap.held_picousd - hold,\n",
        "            held_picousd=cap.held_picousd - (hold if spent else 0),\n",
        ("proofs/test_simulation.py",),
    ),
    "a settlement counts in whatever period is current": Bug(
        _CAPS,
        "        if cap.number != number:\n",
        "        if cap.number < number:\n",
        ("proofs/test_simulation.py",),
    ),
    "a period goes back with the clock": Bug(
        _CAPS,
        "        if number <= self.number:\n",
        "        if number == self.number:\n",
        ("domain/test_caps.py",),
    ),
    "a settlement counts on the day of its end": Bug(
        _ROWS,
        '    " cap_spending_day(r.spending_day, r.held_at)" + _ENDED,\n',
        '    " cap_spending_day(NULL, clock_timestamp())" + _ENDED,\n',
        _ON_DATABASE,
    ),
    "a rotated key begins at zero": Bug(
        "storage/project_keys.py",
        "SET first_key_id = coalesce(o.first_key_id, o.id) FROM",
        "SET first_key_id = NULL FROM",
        _ROTATED,
    ),
    "a key that was rotated twice begins at zero": Bug(
        "storage/project_keys.py",
        "SET first_key_id = coalesce(o.first_key_id, o.id) FROM",
        "SET first_key_id = o.id FROM",
        _ROTATED,
    ),
    "what a call gives back is not written to its caps": Bug(
        "storage/ledger.py",
        "    return _WRITE_STATES.bind(*_state_documents(states)),"
        " *period_caps.write_statements(states)\n",
        "    return (_WRITE_STATES.bind(*_state_documents(states)),)\n",
        _ON_DATABASE,
    ),
    "a hold on a clock that was set back forgets its day": Bug(
        "storage/ledger.py",
        '    return {"spending_day": state.spending_day}\n',
        "    return {}\n",
        _ON_DATABASE,
    ),
    "a new cap counts twice what waits to be folded in": Bug(
        _CHANGES,
        "FILTER (WHERE d.reservation_id IS NULL OR u.kind IS NOT NULL), 0),\n"
        "        coalesce(sum(d.settled + coalesce(o.amount, 0)) FILTER (WHERE u.kind IS NULL), 0)\n",
        "FILTER (WHERE d.reservation_id IS NULL), 0),\n"
        "        coalesce(sum(d.settled + coalesce(o.amount, 0)), 0)\n",
        ("services/ledger/test_period_cap_races.py",),
    ),
    "a new cap does not count what was before it": Bug(
        "services/ledger/caps.py",
        "        counted = await period_cap_changes.count_period(connection, owner, cap.period, day)\n",
        "        number = period_number(cap.period, day)\n        counted = PeriodCap(0, number)\n",
        _ON_DATABASE,
        also=(("    day_at,\n)", "    day_at,\n    period_number,\n)"),),
    ),
    "a month that is dropped takes its part of a week along": Bug(
        "storage/ledger_months.py",
        "        await note_dropped(connection, month)\n",
        "",
        ("services/ledger/test_period_cap_months.py",),
    ),
}
