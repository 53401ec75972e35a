"""Use cases: one function each, to be read top to bottom. They own the transactions and know no HTTP."""
