"""Lists the targets by name. A target takes any bytes, and raises if the code that reads them has a fault."""

from collections.abc import Callable

from tests.fuzz import json_targets, transport_targets

TARGETS: dict[str, Callable[[bytes], None]] = {
    "event_stream": transport_targets.event_stream,
    "aws_event_stream": transport_targets.aws_event_stream,
    "http_answer": transport_targets.http_answer,
    "request": transport_targets.request,
    "content_type": transport_targets.content_type,
    "key": transport_targets.key,
    "json_bounds": json_targets.json_bounds,
    "request_body": json_targets.request_body,
    "whole_answer": json_targets.whole_answer,
    "streamed_answer": json_targets.streamed_answer,
    "cursor": json_targets.cursor,
    "query": json_targets.query,
}
# The targets that read JSON, or lines of JSON.
JSON_TARGETS = frozenset({"json_bounds", "request_body", "whole_answer", "streamed_answer"})
