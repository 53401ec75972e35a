"""How statements are planned whose plans are kept for as long as a connection lives.

The statements of a hold and of a settlement are prepared once for each connection. A plan that is
made while a table is small (a scan or a hash of all of it) would be kept when the table is large.
Their transactions therefore forbid such plans. The settings end with the transaction: every other
statement on the same connection is planned in the ordinary way.
"""

from typing import LiteralString

from tollkeeper.storage.round_trips import Statement

# Columns of a SELECT, in front of the statements that they are for.
ROWS_BY_KEY: LiteralString = """
    set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true)
"""
FIND_ROWS_BY_KEY = Statement("tollkeeper_rows_by_key", "SELECT" + ROWS_BY_KEY).bind()
