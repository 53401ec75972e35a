"""Encodes the reasoning of earlier answers in requests of Anthropic's Messages protocol.

The provider signs each block of reasoning, and accepts a block in a later request only if the
block is unchanged. The gateway sends each signed block to clients as one sealed value: the block as a
JSON text. A request to the provider cannot contain reasoning without a signature, for example the plain
text that a chat client sends back.
"""

import msgspec

from tollkeeper.backends.prompt_content import sealed_objects
from tollkeeper.domain.prompt import FreeObject, Reasoning

_encode = msgspec.json.Encoder().encode


def sealed_block(block: FreeObject) -> str:
    """Encodes a signed or redacted block as one text, which a client can store and send back."""
    return _encode(block).decode()


def signed_blocks(reasoning: Reasoning) -> list[FreeObject]:
    """Returns the blocks in the sealed values of earlier reasoning. Omits values that a backend of
    another protocol created."""
    return [
        block
        for block in sealed_objects(reasoning)
        if block.get("type") in ("thinking", "redacted_thinking")
    ]


def is_signed(reasoning: Reasoning) -> bool:
    return bool(signed_blocks(reasoning))
