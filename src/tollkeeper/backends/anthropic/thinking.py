"""Encodes reasoning of earlier turns on the Messages wire.

The provider signs each block of thinking and accepts it back only unchanged. The gateway's faces
transmit such a block as one sealed value (`sealed_block`), which is the block's JSON. A request
cannot contain reasoning without a signature, such as the text that a chat client returns.
"""

import msgspec

from tollkeeper.backends.prompt_content import sealed_objects
from tollkeeper.domain.prompt import FreeObject, Reasoning

_encode = msgspec.json.Encoder().encode


def sealed_block(block: FreeObject) -> str:
    """Encodes a signed or redacted block as one value that a client can store."""
    return _encode(block).decode()


def signed_blocks(reasoning: Reasoning) -> list[FreeObject]:
    """Returns the blocks of earlier reasoning. Omits values that another backend sealed."""
    return [
        block
        for block in sealed_objects(reasoning)
        if block.get("type") in ("thinking", "redacted_thinking")
    ]


def is_signed(reasoning: Reasoning) -> bool:
    return bool(signed_blocks(reasoning))
