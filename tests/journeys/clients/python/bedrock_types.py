"""Checks requests, answers and streams of Amazon Bedrock with AWS's own library, and compares signatures
with the library's. Prints complaints.

Standard input has `requests` ({name: body}), `counts` (the same, for counts), `answers` ({name: body}),
`streams` ({name: frames in base64}) and `signed` (requests with the headers that the gateway adds).
"""

import base64
import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import botocore.auth
import botocore.eventstream
import botocore.loaders
import botocore.model
import botocore.parsers
import botocore.validate
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

_described = botocore.loaders.Loader().load_service_model("bedrock-runtime", "service-2")
_service = botocore.model.ServiceModel(_described)
_validator = botocore.validate.ParamValidator()
_parser = botocore.parsers.create_parser("rest-json")


def _operation(name: str) -> Any:
    return _service.operation_model(name)


def _read_request(operation: str) -> Callable[[Any], None]:
    def read(body: dict[str, Any]) -> None:
        # In HTTP requests, the model is part of the path.
        shape = _operation(operation).input_shape
        report = _validator.validate({"modelId": "anthropic.claude", **body}, shape)
        if report.has_errors():
            raise ValueError(report.generate_report())

    return read


def _read_answer(body: dict[str, Any]) -> None:
    shape = _operation("Converse").output_shape
    response = {"body": json.dumps(body).encode(), "headers": {}, "status_code": 200}
    parsed = _parser.parse(response, shape)
    parsed.pop("ResponseMetadata")
    report = _validator.validate(parsed, shape)
    if report.has_errors():
        raise ValueError(report.generate_report())
    reasons = shape.members["stopReason"].enum
    if parsed["stopReason"] not in reasons:
        raise ValueError(f"{parsed['stopReason']} is no reason of an end")


def _read_stream(written: str) -> None:
    """Checks the frames, and every event in them."""
    shape = _operation("ConverseStream").output_shape.members["stream"]
    parser = botocore.parsers.EventStreamJSONParser()
    buffer = botocore.eventstream.EventStreamBuffer()
    buffer.add_data(base64.b64decode(written))
    read = 0
    for message in buffer:
        response = message.to_response_dict()
        headers = response["headers"]
        name = headers.get(":event-type") or headers[":exception-type"]
        if name not in shape.members:
            raise ValueError(f"{name} is no event")
        if response["status_code"] == 200:
            parsed = parser.parse(response, shape)
            report = _validator.validate(parsed, shape)
            if report.has_errors():
                raise ValueError(report.generate_report())
        read += 1
    if not read:
        raise ValueError("there is no frame")


def _check_signature(signed: dict[str, Any]) -> None:
    time = signed["headers"]["x-amz-date"]
    request = AWSRequest(
        method="POST",
        url=f"https://{signed['host']}{signed['path']}",
        data=signed["body"].encode(),
        headers={"X-Amz-Date": time},
    )
    request.context["timestamp"] = time
    keys = Credentials(signed["access_key"], signed["secret_key"], signed["session_token"] or None)
    signer = botocore.auth.SigV4Auth(keys, "bedrock", signed["region"])
    signer._inject_signature_to_request(
        request, _signature(signer, request, signed["session_token"])
    )
    if request.headers["Authorization"] != signed["headers"]["authorization"]:
        raise ValueError(f"{request.headers['Authorization']} is expected")


def _signature(signer: Any, request: Any, session_token: str) -> str:
    if session_token:
        request.headers["X-Amz-Security-Token"] = session_token
    canonical = signer.canonical_request(request)
    return str(signer.signature(signer.string_to_sign(request, canonical), request))


def complaints(read: Callable[[Any], None], given: dict[str, Any]) -> Iterator[str]:
    for name, content in given.items():
        try:
            read(content)
        except (ValueError, KeyError, TypeError, botocore.eventstream.ParserError) as error:
            yield f"{name}: {error!r}"


given = json.load(io.TextIOWrapper(sys.stdin.buffer))
found = [
    *complaints(_read_request("Converse"), given.get("requests", {})),
    *complaints(_read_request("CountTokens"), given.get("counts", {})),
    *complaints(_read_answer, given.get("answers", {})),
    *complaints(_read_stream, given.get("streams", {})),
    *complaints(_check_signature, given.get("signed", {})),
]
sys.stdout.write(json.dumps(found))
