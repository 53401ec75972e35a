"""Finds the endpoint for a method and a path.

Only parameter values are percent-decoded, so `%2F` separates no segments and an encoded spelling of
a fixed path isn't found. `{model}` takes the whole rest of the path, because older OpenAI SDKs send
a model id's slashes unencoded.
"""

from collections.abc import Iterable, Sequence
from urllib.parse import unquote_to_bytes

from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.faces.endpoint import AnyEndpoint
from tollkeeper.http.envelope import ErrorStyle, MethodNotAllowed

_UNKNOWN_PATH = "There is no endpoint at this path."
_REST_OF_PATH = b"{model}"


class Router:
    def __init__(self, endpoints: Sequence[AnyEndpoint]) -> None:
        self._fixed: dict[bytes, dict[str, AnyEndpoint]] = {}
        self._patterns: dict[tuple[bytes, ...], dict[str, AnyEndpoint]] = {}
        for endpoint in endpoints:
            path = endpoint.path.encode()
            if b"{" in path:
                assert endpoint.error_style is ErrorStyle.USUAL, (
                    "`error_style` looks only at fixed paths"
                )
                methods = self._patterns.setdefault(tuple(path.split(b"/")), {})
            else:
                methods = self._fixed.setdefault(path, {})
            assert endpoint.method not in methods, "method and path of an endpoint are unique"
            methods[endpoint.method] = endpoint

    @property
    def methods(self) -> str:
        """All that at least one path accepts."""
        by_path = [*self._fixed.values(), *self._patterns.values()]
        return _allowed(method for methods in by_path for method in methods)

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

    def error_style(self, raw_path: bytes) -> ErrorStyle:
        """For a request without an endpoint: a wrong method, for example, or too large headers."""
        for endpoint in self._fixed.get(raw_path, {}).values():
            return endpoint.error_style
        return ErrorStyle.USUAL


def _by_method(methods: dict[str, AnyEndpoint], method: str) -> AnyEndpoint:
    # The server omits the body of an answer to HEAD.
    endpoint = methods.get("GET" if method == "HEAD" else method)
    if endpoint is None:
        raise MethodNotAllowed(_allowed(methods))
    return endpoint


def _allowed(methods: Iterable[str]) -> str:
    known = set(methods)
    return ", ".join(sorted(known | {"HEAD"} if "GET" in known else known))


def _match(pattern: tuple[bytes, ...], segments: list[bytes]) -> dict[str, bytes] | None:
    if pattern[-1] == _REST_OF_PATH and len(segments) > len(pattern):
        last = len(pattern) - 1
        segments = [*segments[:last], b"/".join(segments[last:])]
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
