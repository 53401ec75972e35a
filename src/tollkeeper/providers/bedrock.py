"""What all Bedrock protocols share: exceptions (frames that end a stream with an error), and the
path of the token count request."""

import re
from urllib.parse import quote

import msgspec

from tollkeeper.core.errors import BackendFailed, TollkeeperError
from tollkeeper.core.prompt import FreeObject
from tollkeeper.providers.answer_json import MalformedAnswer, decode
from tollkeeper.providers.refusals import refusal

# Of exceptions that aren't in `_STATUSES`.
_UNKNOWN_STATUS = 500
_STATUSES = {
    "accessDeniedException": 403,
    "internalServerException": 500,
    "modelErrorException": 424,
    "modelNotReadyException": 429,
    "modelStreamErrorException": 424,
    "modelTimeoutException": 408,
    "resourceNotFoundException": 404,
    "serviceQuotaExceededException": 429,
    "serviceUnavailableException": 503,
    "throttlingException": 429,
    "validationException": 400,
}
_ERROR = "error"
# A cross-region inference profile's prefix, which the token count request doesn't accept.
_GEOGRAPHY = re.compile(r"^(?:us|us-gov|eu|apac|jp|au|ca|global)\.")
_records = msgspec.json.Decoder(dict[str, msgspec.Raw])
_details = msgspec.json.Decoder(FreeObject)
_encode = msgspec.json.Encoder().encode


def count_tokens_path(upstream_model: str) -> str:
    return f"model/{quote(_GEOGRAPHY.sub('', upstream_model), safe='')}/count-tokens"


def read_record(payload: bytes) -> tuple[str, msgspec.Raw]:
    """The event's name and content (see `aws_event_stream`). Raises MalformedAnswer unless there's
    exactly one field."""
    record = decode(_records, payload)
    if len(record) != 1:
        raise MalformedAnswer("a record does not contain exactly one event")
    ((name, content),) = record.items()
    return name, content


def is_exception(name: str) -> bool:
    return name == _ERROR or name.endswith("Exception")


def failure_of(
    name: str, content: msgspec.Raw, *, accepted: bool, secrets: tuple[str, ...]
) -> TollkeeperError:
    """`accepted`: the backend has sent output, so the call is charged. Otherwise the exception's
    status decides."""
    if accepted:
        return BackendFailed("The backend failed while it was answering.", charged=True)
    try:
        details = decode(_details, content)
    except MalformedAnswer:
        details = {}
    if name == _ERROR:
        # The code of an `error` frame is an exception's name.
        code = str(details.get("code"))
        name = code[:1].lower() + code[1:]
    status = _STATUSES.get(name, _UNKNOWN_STATUS)
    body = _encode({"message": details.get("message")})
    return refusal(status, body, retry_after=None, secrets=secrets)
