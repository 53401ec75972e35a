"""Reasoning on the Messages wire, as it is carried through turns.

The provider signs each block of thinking and accepts it back only unchanged. The gateway's faces
carry such a block as one sealed value (`sealed_block`), which is the block's JSON. Reasoning without
a signature, such as the text that a chat caller sends back, has no place in a request.
"""

import msgspec

from tollkeeper.backends.prompt_content import sealed_objects
from tollkeeper.domain.prompt import FreeObject, Reasoning

_encode = msgspec.json.Encoder().encode


def sealed_block(block: FreeObject) -> str:
    """A signed or redacted block as one value that a caller can keep."""
    return _encode(block).decode()


def signed_blocks(reasoning: Reasoning) -> list[FreeObject]:
    """The blocks of earlier reasoning. Values that another backend sealed are left out."""
    return [
        block
        for block in sealed_objects(reasoning)
        if block.get("type") in ("thinking", "redacted_thinking")
    ]


def is_signed(reasoning: Reasoning) -> bool:
    return bool(signed_blocks(reasoning))
