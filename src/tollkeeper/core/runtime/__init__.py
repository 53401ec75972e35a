"""Timeouts, fair queues, threads, batches, logs and counters for every room."""
