"""The columns of a provider's bill that `ledger reconcile` reads."""

from typing import Literal

BillColumn = Literal[
    "day",
    "model",
    "requests",
    "input_tokens",
    "uncached_input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "cost",
]
