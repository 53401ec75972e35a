"""Implements `Wire`, the interface of a backend protocol, for Anthropic's Messages protocol."""

import base64
import binascii
from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec

from tollkeeper.backends.answer_json import MalformedAnswer, decode, decode_usage_only
from tollkeeper.backends.anthropic.answer import MessagesAnswer, report_from_usage
from tollkeeper.backends.anthropic.records import decode_message
from tollkeeper.backends.anthropic.request import count_request, encoded, messages_request
from tollkeeper.backends.aws_exceptions import failure_of, is_exception, read_record
from tollkeeper.backends.bedrock_path import count_tokens_path
from tollkeeper.backends.transport.framing import Framing
from tollkeeper.backends.unsupported import refuse_server_tools
from tollkeeper.backends.wire import AnswerReader, WholeAnswer
from tollkeeper.domain.inference import Call, UsageReport
from tollkeeper.domain.prompt import FreeObject

_CHUNK = "chunk"
_CACHE_MARK = "cache_control"


class _Chunk(msgspec.Struct, gc=False):
    """Represents a frame of Amazon Bedrock that contains one event."""

    # The event in base64.
    bytes: str = ""


_chunk_decoder = msgspec.json.Decoder(_Chunk)


class BedrockMessagesAnswer(MessagesAnswer):
    """Reads a streamed answer from Amazon Bedrock. Each frame of the stream contains one event in
    base64, and the stream may end with an AWS exception instead of an `error` event."""

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
    """Changes the body of a request to the form of Amazon Bedrock. Removes `stream`, because the path
    tells whether the answer is streamed. Removes `metadata`, which identifies the user. Moves the
    cache mark for the whole prompt to the last block of the prompt."""
    body.pop("stream", None)
    body.pop("metadata", None)
    mark = body.pop(_CACHE_MARK, None)
    if mark is not None:
        blocks = body["messages"][-1]["content"]
        blocks[-1] = {**blocks[-1], _CACHE_MARK: mark}


class Endpoint(StrEnum):
    """Lists the services that offer this protocol. The comments show the paths of requests for answers
    that are not streamed. The services also differ in the version of the protocol, and in the position
    of the model's name."""

    # {url}/messages
    ANTHROPIC = "anthropic"
    # {url}/{model}:rawPredict. The URL ends with /publishers/anthropic/models.
    VERTEX = "vertex"
    # {url}/model/{model}/invoke
    BEDROCK = "bedrock"


# The version of the protocol, which Anthropic's own endpoint expects in a header.
_VERSION = "2023-06-01"
# The versions for the services that expect the version in the body, and the model in the path.
_VERSIONS = {Endpoint.VERTEX: "vertex-2023-10-16", Endpoint.BEDROCK: "bedrock-2023-05-31"}


class MessagesWire:
    """Implements `Wire`, and the token count request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        is_anthropic = endpoint is Endpoint.ANTHROPIC
        self._is_bedrock = endpoint is Endpoint.BEDROCK
        self._takes_image_urls = is_anthropic
        self.headers: Mapping[str, str] = {"anthropic-version": _VERSION} if is_anthropic else {}
        self.framing = Framing.AWS_EVENT_STREAM if self._is_bedrock else Framing.SERVER_SENT_EVENTS

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        match self._endpoint:
            case Endpoint.ANTHROPIC:
                return "messages"
            case Endpoint.VERTEX:
                verb = "streamRawPredict" if stream else "rawPredict"
                # Without "./", `urljoin` would read the text before the colon as a URL scheme.
                return f"./{quote(upstream_model, safe='@')}:{verb}"
        verb = "invoke-with-response-stream" if stream else "invoke"
        return f"model/{quote(upstream_model, safe='')}/{verb}"

    def count_path_for(self, upstream_model: str) -> str:
        match self._endpoint:
            case Endpoint.ANTHROPIC:
                return "messages/count_tokens"
            case Endpoint.VERTEX:
                return "./count-tokens:rawPredict"
        return count_tokens_path(upstream_model)

    def beta_header(self, call: Call) -> bytes:
        """Returns the header line with the client's beta flags. Returns no line for Vertex and
        Bedrock, because the flags are then a field of the body."""
        if self._endpoint in _VERSIONS or not (flags := call.supported_beta_flags):
            return b""
        return b"anthropic-beta: %b\r\n" % ",".join(flags).encode("ascii")

    @property
    def count_field(self) -> str:
        return "inputTokens" if self._is_bedrock else "input_tokens"

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        body = messages_request(
            call, stream=stream, extra=extra, takes_image_urls=self._takes_image_urls
        )
        if self._endpoint in _VERSIONS:
            del body["model"]
            body["anthropic_version"] = _VERSIONS[self._endpoint]
            body |= _beta_field(call)
        if self._is_bedrock:
            adapt_to_bedrock(body)
        return encoded(body)

    def encode_count(self, call: Call) -> bytes:
        if self._is_bedrock:
            refuse_server_tools(call.prompt)
            # Bedrock counts the tokens of a whole call request, which is sent to it in base64.
            request = self.encode_request(call, stream=False, extra={})
            counted = {"body": base64.b64encode(request).decode("ascii")}
            return encoded({"input": {"invokeModel": counted}})
        body = count_request(call, takes_image_urls=self._takes_image_urls)
        if self._endpoint in _VERSIONS:
            body["anthropic_version"] = _VERSIONS[self._endpoint]
            body |= _beta_field(call)
        return encoded(body)

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        answer = MessagesAnswer(call, secrets=secrets)
        return answer.whole_answer(answer.read_whole(decode_message(body)))

    def read_usage(self, body: bytes) -> UsageReport | None:
        return report_from_usage(decode_usage_only(body).usage)

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader:
        reader = BedrockMessagesAnswer if self._is_bedrock else MessagesAnswer
        return reader(call, secrets=secrets)


def _beta_field(call: Call) -> dict[str, Any]:
    flags = call.supported_beta_flags
    return {"anthropic_beta": flags} if flags else {}
