"""The head of a request, and what the application reads from it once for all requests that have it."""

from tollkeeper.api.http.endpoint import AnyEndpoint, HeaderIndex


class HeadReading:
    """The endpoint that a head asks for, and the parts of the head that its endpoint needs.

    It says nothing about the caller behind the key: that may change between two requests.
    """

    __slots__ = ("endpoint", "key", "path")

    def __init__(self, endpoint: AnyEndpoint, path: dict[str, str]) -> None:
        self.endpoint = endpoint
        # The parameters in the path.
        self.path = path
        # The key as it was presented.
        self.key = ""


class RequestHead:
    """Method, target and headers. Requests of one connection that have the same head share it."""

    __slots__ = ("headers", "is_http10", "method", "path", "query", "reading")

    def __init__(
        self, method: str, path: bytes, query: bytes, headers: HeaderIndex, *, is_http10: bool
    ) -> None:
        self.method = method
        # As the caller wrote it, without the query.
        self.path = path
        self.query = query
        # Without the length of the body, which may be another one for each request.
        self.headers = headers
        self.is_http10 = is_http10
        # Set by the application when it has found the head valid, all but its query.
        self.reading: HeadReading | None = None
