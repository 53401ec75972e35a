"""The chat completions protocol towards backends."""
