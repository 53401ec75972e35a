"""Defines the wire types of errors: the usual envelope, and those of token counting and of
Messages."""

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


class MessagesErrorEnvelopeWithId(MessagesErrorEnvelope):
    request_id: str
