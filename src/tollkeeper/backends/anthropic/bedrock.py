"""Adapts Anthropic's protocol to Amazon Bedrock: its requests lack some fields, and its stream is
wrapped.

Each event of the protocol is the content of one frame, in base64. An AWS exception may end the
stream in place of an `error` event.
"""

import base64
import binascii

import msgspec

from tollkeeper.backends.answer_json import MalformedAnswer, decode
from tollkeeper.backends.anthropic.answer import MessagesAnswer
from tollkeeper.backends.aws_exceptions import failure_of, is_exception, read_record
from tollkeeper.domain.prompt import FreeObject

_CHUNK = "chunk"
_CACHE_MARK = "cache_control"


class _Chunk(msgspec.Struct, gc=False):
    bytes: str = ""


_chunk_decoder = msgspec.json.Decoder(_Chunk)


class BedrockMessagesAnswer(MessagesAnswer):
    def _read_payload(self, payload: bytes) -> None:
        name, content = read_record(payload)
        if is_exception(name):
            self.fail(failure_of(name, content, accepted=self.accepted, secrets=self._secrets))
        elif name == _CHUNK:
            super()._read_payload(self._split_characters.join(_unwrapped(content)))
        else:
            self._count_empty_record()


def _unwrapped(content: msgspec.Raw) -> bytes:
    try:
        return base64.b64decode(decode(_chunk_decoder, content).bytes, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedAnswer("a chunk is not base64") from error


def adapt_to_bedrock(body: FreeObject) -> None:
    """Adapts a request: the path tells whether it is a stream, the user is not sent, and the whole
    prompt is marked for the cache at its last block."""
    body.pop("stream", None)
    body.pop("metadata", None)
    mark = body.pop(_CACHE_MARK, None)
    if mark is not None:
        blocks = body["messages"][-1]["content"]
        blocks[-1] = {**blocks[-1], _CACHE_MARK: mark}
