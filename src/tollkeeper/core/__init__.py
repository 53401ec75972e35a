"""What every room speaks: ids, errors, money, prices, prompts, events of an answer, usage.

Pure: no I/O, no `await`, no settings. What needs a clock, a thread or a log is in `core/runtime`.
"""
