"""What a running engine says of itself, once, when it is ready."""

import msgspec


class EngineReport(msgspec.Struct, frozen=True):
    # Of each slot.
    context_length: int
    slots: int
    # The kind of its vocabulary, and how many tokens that has.
    tokenizer: str
    vocabulary: int
    # Found by repeating a prompt: what was read before is not read again.
    prefix_cache: bool
    # Of prefixes whose slot went to another call; this the engine does not tell.
    prefix_cache_mib: int

    def __str__(self) -> str:
        cache = f"prefix cache with {self.prefix_cache_mib} MiB beside the slots"
        return (
            f"{self.slots} slots of {self.context_length} tokens, "
            f"tokenizer {self.tokenizer} with {self.vocabulary} tokens, "
            f"{cache if self.prefix_cache else 'no prefix cache'}"
        )


def read_report(line: bytes) -> EngineReport | None:
    """None for anything else."""
    try:
        return msgspec.json.decode(line, type=EngineReport)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
