"""Converts whole floats in generated bodies to integers, because the gateway does not accept `1.0` as one.

Schemathesis sometimes writes integers as whole floats, which a JSON schema cannot forbid. Other tests
check that the gateway refuses them.
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
