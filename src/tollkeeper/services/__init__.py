"""Use cases: each is one function read top to bottom. They own the transactions and know no HTTP."""
