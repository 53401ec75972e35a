"""The report that the engine's process sends once, when the engine is ready."""

import msgspec


class EngineReport(msgspec.Struct, frozen=True):
    # Tokens per slot.
    context_length: int
    slots: int
    # The kind of tokenizer, and the number of tokens in its vocabulary.
    tokenizer: str
    vocabulary: int
    # Whether the engine reuses what it has read of an equal beginning; found by repeating a prompt.
    prefix_cache: bool
    # Memory for prefixes whose slot went to another call. This is the configured value: the engine
    # does not report it.
    prefix_cache_mib: int

    def __str__(self) -> str:
        cache = f"prefix cache with {self.prefix_cache_mib} MiB beside the slots"
        return (
            f"{self.slots} slots of {self.context_length} tokens, "
            f"tokenizer {self.tokenizer} with {self.vocabulary} tokens, "
            f"{cache if self.prefix_cache else 'no prefix cache'}"
        )


def read_report(line: bytes) -> EngineReport | None:
    """None if the line is not a report."""
    try:
        return msgspec.json.decode(line, type=EngineReport)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
