"""Wire types of errors: the usual envelope, and the one of token counting."""

from typing import Literal

from tollkeeper.api.wire.base import Sent


class ErrorBody(Sent):
    code: str
    message: str
    type: str
    param: str | None
    request_id: str
    doc_url: str | None


class ErrorEnvelope(Sent):
    error: ErrorBody


class MessagesErrorEnvelope(Sent):
    type: Literal["error"]
    error: ErrorBody
