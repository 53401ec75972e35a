"""Controls the plans of statements that stay prepared as long as a connection lives.

The statements of a hold and of a settlement are prepared once for each connection. A plan for a
small table (a full scan or hash) would still be used when the table is large. Their transactions
therefore forbid such plans. These settings end with the transaction: all other statements on the
connection are planned normally.
"""

from typing import LiteralString

from tollkeeper.storage.round_trips import Statement

# SELECT columns, placed before the statements that need them.
ROWS_BY_KEY: LiteralString = """
    set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true)
"""
FIND_ROWS_BY_KEY = Statement("tollkeeper_rows_by_key", "SELECT" + ROWS_BY_KEY).bind()
