"""Measures functions that read large content: how long they block other threads, and their memory."""

import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def longest_block_s(read: Callable[[str], Any], content: str) -> float:
    """Reads the content in a thread, and returns the longest time for which this thread could not run.
    Measures CPU time, so that other processes do not matter."""
    longest_s = 0.0
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read, content)
        while not reading.done():
            before = time.process_time()
            time.sleep(0.0005)
            longest_s = max(longest_s, time.process_time() - before)
    reading.result()
    return longest_s


def peak_bytes(read: Callable[[str], Any], content: str) -> int:
    """Reads the content, and returns the highest memory that Python used for this."""
    tracemalloc.start()
    try:
        read(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak
