"""Query plans of statements that stay prepared as long as a connection: those that create holds and
settle calls. A small table's plan (full scan, hash join) would still be used when it's large, so
these connections forbid full scans, hash and merge joins. Bitmap scans too: each reads all rows
deleted since the last vacuum again, while an index scan skips those found deleted."""

from typing import LiteralString

_SETTINGS: dict[LiteralString, LiteralString] = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
}
# Until the session, or the transaction, ends.
PREFER_INDEX_LOOKUPS: LiteralString = "; ".join(
    "SET " + name + " TO " + value for name, value in _SETTINGS.items()
)
PREFER_INDEX_LOOKUPS_IN_TRANSACTION: LiteralString = "; ".join(
    "SET LOCAL " + name + " TO " + value for name, value in _SETTINGS.items()
)
PLAN_NORMALLY: LiteralString = "; ".join("RESET " + name for name in _SETTINGS)
