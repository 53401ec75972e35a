"""Provides timeouts, fair queues, threads and logs for every package except `domain`."""
