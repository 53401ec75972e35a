"""Controls the query plans of statements that stay prepared as long as a connection lives.

The statements that create holds (amounts reserved before calls) and settle calls are prepared once
for each connection. A plan for a small table (a full scan or a hash join) would still be used when
the table has become large. So the transactions of these statements forbid full scans, hash joins and
merge joins. They also forbid bitmap scans, which read the rows that were deleted since the last
vacuum again each time; a plain index scan skips rows that an earlier scan has found deleted. The
settings end with the transaction, so all other statements on the connection are planned normally.
"""

from typing import LiteralString

from tollkeeper.storage.round_trips import Statement

# Columns of a SELECT that changes the settings of the transaction. The SELECT must run before the
# statements that need these settings.
INDEX_LOOKUP_SETTINGS: LiteralString = """
    set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true)
"""
# A statement that only changes these settings. Its row contains no data for the caller.
PREFER_INDEX_LOOKUPS = Statement(
    "tollkeeper_rows_by_key", "SELECT" + INDEX_LOOKUP_SETTINGS, returns_rows=False
).bind()
