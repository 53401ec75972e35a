"""Bugs in the months of the ledger and in the provider's bill, and the tests that must catch them."""

from tests.proofs.bug import Bug

MONTH_BUGS = {
    # Months of the ledger.
    "a close forgets the overage": Bug(
        "storage/ledger_months.py",
        "coalesce(sum(o.amount), 0) AS overage",
        "0 AS overage",
        ("services/ledger/test_months.py",),
    ),
    "a close is not bound to the one before": Bug(
        "services/ledger/close_digest.py",
        "hashlib.sha256(previous_digest or _NO_CLOSE_BEFORE)",
        "hashlib.sha256(_NO_CLOSE_BEFORE)",
        ("services/ledger/test_months.py",),
    ),
    "a month is closed with a hold in it": Bug(
        "services/ledger/months.py",
        "            await _check_resolved(connection, month)\n",
        "",
        ("services/ledger/test_months.py",),
    ),
    "a closed month can be changed": Bug(
        "services/ledger/months.py",
        "            await ledger_months.seal_month(connection, month)\n",
        "",
        ("services/ledger/test_months.py",),
    ),
    "a month that is not proven is dropped": Bug(
        "services/ledger/months.py",
        "        if found.proven is None:\n",
        "        if found.proven is None and found.close is None:\n",
        ("services/ledger/test_month_drop.py",),
    ),
    "a settlement of a dropped month is charged again": Bug(
        "storage/resolutions.py",
        "          AND NOT EXISTS (SELECT FROM ledger_closes WHERE month = ledger_month(w.id))\n",
        "",
        ("services/ledger/test_month_drop.py",),
        also=(
            (
                "WHERE r.organization_id = w.organization_id AND r.id = w.id)\n",
                "WHERE r.organization_id = w.organization_id AND r.id = w.id)\n\n",
            ),
        ),
    ),
    "a drop forgets what is not folded yet": Bug(
        "services/ledger/months.py",
        "        await self._bulk_resolution.fold(unfolded)\n",
        "",
        ("services/ledger/test_month_drop.py",),
    ),
    "verify skips a slice of organizations": Bug(
        "services/ledger/verification.py",
        "        yield Slice(after=after, end=end)\n",
        "        if after == FIRST_ID or end == LAST_ID:\n"
        "            yield Slice(after=after, end=end)\n",
        ("services/ledger/test_verification.py",),
    ),
    "verify skips the ids around the months": Bug(
        "services/ledger/verification.py",
        "    return [*ranges, (begin, LAST_ID)]\n",
        "    return ranges\n",
        ("services/ledger/test_verification.py",),
    ),
    "verify does not ask the totals of closed months": Bug(
        "storage/verification.py",
        "settled + overage, overage\n",
        "0, 0\n",
        ("services/ledger/test_months.py",),
    ),
    # The usual mistake with partitions: a time becomes part of the key.
    "a reservation resolves once at each time": Bug(
        "storage/migrations/versions/0010_ledger_months.py",
        "    PRIMARY KEY (organization_id, reservation_id)\n"
        ") PARTITION BY RANGE (reservation_id);\n"
        "CREATE TABLE overages",
        "    PRIMARY KEY (organization_id, reservation_id, resolved_at)\n"
        ") PARTITION BY RANGE (reservation_id);\n"
        "CREATE TABLE overages",
        ("services/ledger/test_months.py",),
        # Nothing else may ask for the key as it was.
        also=(
            (
                "ALTER INDEX resolutions_pkey RENAME TO resolutions_default_pkey;\n",
                (
                    "ALTER TABLE overages_default"
                    " DROP CONSTRAINT overages_organization_id_reservation_id_fkey;\n"
                    "ALTER TABLE resolutions_default DROP CONSTRAINT resolutions_pkey;\n"
                ),
            ),
            (
                (
                    "    EXECUTE format('ALTER TABLE %I ADD FOREIGN KEY (organization_id, reservation_id)\n"
                    "        REFERENCES %I (organization_id, reservation_id)', 'overages_' || suffix,\n"
                    "        'resolutions_' || suffix);\n"
                ),
                "",
            ),
        ),
    ),
    "a settlement opens the partitions of all months": Bug(
        "storage/resolutions.py",
        "        WHERE r.id BETWEEN %s::uuid AND %s::uuid\n",
        "        WHERE %s::uuid <= %s::uuid\n",
        ("storage/test_plans.py",),
    ),
    # The provider's bill.
    "a bill is added up in floats": Bug(
        "services/ledger/bill_file.py",
        "    return _EXACT.add(one, other)\n",
        "    return Decimal(float(one) + float(other))\n",
        ("services/ledger/test_bill.py",),
    ),
    "calls that were released are on the bill": Bug(
        "storage/rollups.py",
        "        FROM fresh WHERE backend IS NOT NULL AND settlement IN ('settled', 'unsettled')\n",
        "        FROM fresh WHERE backend IS NOT NULL\n",
        ("services/ledger/test_bill.py",),
    ),
}
