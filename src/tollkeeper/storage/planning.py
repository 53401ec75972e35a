"""Controls the query plans of statements that stay prepared as long as a connection lives.

The statements that create holds and settle calls are prepared once for each connection. A plan for a
small table (a full scan or a hash join) would still be used when the table has become large. So
connections that run these statements forbid full scans, hash joins and merge joins. They also forbid
bitmap scans: each of them reads again all rows that were deleted since the last vacuum. A plain index
scan skips rows that an earlier scan has found deleted. All other statements are planned normally.
"""

from typing import LiteralString

_SETTINGS: dict[LiteralString, LiteralString] = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
}
# Statements that change these settings until the session ends, or until the transaction ends.
PREFER_INDEX_LOOKUPS: LiteralString = "; ".join(
    "SET " + name + " TO " + value for name, value in _SETTINGS.items()
)
PREFER_INDEX_LOOKUPS_IN_TRANSACTION: LiteralString = "; ".join(
    "SET LOCAL " + name + " TO " + value for name, value in _SETTINGS.items()
)
PLAN_NORMALLY: LiteralString = "; ".join("RESET " + name for name in _SETTINGS)
