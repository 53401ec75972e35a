"""Where this service is stricter than JSON Schema can say: `1.0` is not an integer here.

Schemathesis spells integers as whole floats now and then, because a schema cannot forbid it. That
the service refuses them is tested by hand; here they are spelled as integers.
"""

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    return _without_whole_floats(body)


def _without_whole_floats(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, list):
        return [_without_whole_floats(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_whole_floats(item) for key, item in value.items()}
    return value
