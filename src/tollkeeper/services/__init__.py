"""Contains the use cases, one function each. They own the transactions and know no HTTP."""
