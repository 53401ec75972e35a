"""Provides the verbs and records of a scripted model server that speaks the Responses protocol."""

from collections.abc import Iterable
from typing import Any

from tests.support.upstream import DONE, Peer, Verb, answer, stream
from tests.support.upstream_wire import (
    begun_response,
    message_item,
    response,
    response_records,
    typed,
)

BEGUN = [
    typed("response.created", response=begun_response()),
    typed("response.output_item.added", output_index=0, item={**message_item(), "content": []}),
]


def text_piece(text: str, **fields: Any) -> bytes:
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return typed("response.output_text.delta", delta=text, **{**place, **fields})


def respond(*output: dict[str, Any], **fields: Any) -> Verb:
    """Answers as a correct server: in JSON or as a stream, as requested."""

    async def verb(peer: Peer) -> None:
        if peer.request.json.get("stream"):
            await stream([*response_records(*output, **fields), DONE])(peer)
        else:
            await answer(response(*output, **fields))(peer)

    return verb


def text_then(*records: bytes, pieces: Iterable[str] = ("0 ", "1 ")) -> list[bytes]:
    """Returns the records of a stream that contains some text before these records."""
    return [*BEGUN, *(text_piece(piece) for piece in pieces), *records]
