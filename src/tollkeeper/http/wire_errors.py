"""Errors: the usual envelope, token counting's and Messages'."""

from typing import Literal

from tollkeeper.http.wire_base import ResponseObject


class ErrorBody(ResponseObject):
    code: str
    message: str
    type: str
    param: str | None
    request_id: str
    doc_url: str | None


class ErrorEnvelope(ResponseObject):
    error: ErrorBody


class MessagesErrorEnvelope(ResponseObject):
    type: Literal["error"]
    error: ErrorBody


class MessagesErrorEnvelopeWithId(MessagesErrorEnvelope):
    request_id: str
