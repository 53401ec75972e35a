"""Use cases, usually one method each. They begin and end the transactions and know nothing of
HTTP."""
