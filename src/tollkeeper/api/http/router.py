"""From method and raw path to the row of the route table.

The raw path is compared, not a decoded one: `%2F` inside a segment is part of the segment, and no
spelling of a path reaches a route by another way than its own.
"""

from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from tollkeeper.api.http.endpoint import AnyEndpoint
from tollkeeper.api.http.envelope import MethodNotAllowed
from tollkeeper.domain.errors import InvalidRequest, NotFound

_UNKNOWN_PATH = "There is nothing at this path."


class Router:
    def __init__(self, endpoints: Sequence[AnyEndpoint]) -> None:
        self._fixed: dict[bytes, dict[str, AnyEndpoint]] = {}
        self._patterns: dict[tuple[bytes, ...], dict[str, AnyEndpoint]] = {}
        for endpoint in endpoints:
            path = endpoint.path.encode()
            if b"{" in path:
                methods = self._patterns.setdefault(tuple(path.split(b"/")), {})
            else:
                methods = self._fixed.setdefault(path, {})
            assert endpoint.method not in methods, "one endpoint a method and path"
            methods[endpoint.method] = endpoint

    def find(self, method: str, raw_path: bytes) -> tuple[AnyEndpoint, dict[str, str]]:
        methods = self._fixed.get(raw_path)
        if methods is not None:
            return _by_method(methods, method), {}
        segments = raw_path.split(b"/")
        for pattern, methods in self._patterns.items():
            values = _match(pattern, segments)
            if values is not None:
                endpoint = _by_method(methods, method)
                return endpoint, {name: _decoded(name, value) for name, value in values.items()}
        raise NotFound(_UNKNOWN_PATH)


def _by_method(methods: dict[str, AnyEndpoint], method: str) -> AnyEndpoint:
    endpoint = methods.get(method)
    if endpoint is None:
        raise MethodNotAllowed(", ".join(sorted(methods)))
    return endpoint


def _match(pattern: tuple[bytes, ...], segments: list[bytes]) -> dict[str, bytes] | None:
    if len(pattern) != len(segments):
        return None
    values = {}
    for expected, segment in zip(pattern, segments, strict=True):
        if expected.startswith(b"{"):
            if not segment:
                return None
            values[expected[1:-1].decode()] = segment
        elif expected != segment:
            return None
    return values


def _decoded(name: str, segment: bytes) -> str:
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("The path is not valid UTF-8.", param=name) from None
