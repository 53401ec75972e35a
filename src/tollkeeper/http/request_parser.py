"""Parses a connection's HTTP requests. llhttp (through httptools) finds where headers and bodies begin and
end, and rejects ambiguous requests; `RequestParser` limits sizes and checks headers. It ignores Upgrade, as
RFC 9110 allows.

A client usually sends the same headers each time, except for the length. Then `parse_repeated` reuses the
parsed ones, and the application its results for them, such as endpoint and key. With four headers this saves
about 1,260 bytecodes a call, and SDKs send eighteen, say.

`parse_known` reuses another open connection's headers, for clients with several.
"""

import re
from collections.abc import MutableMapping
from typing import NamedTuple, TypeAlias

import httptools

from tollkeeper.core.errors import InvalidRequest, TollkeeperError
from tollkeeper.http.envelope import HeadersTooLarge
from tollkeeper.http.exchange import HeaderIndex, RequestHead
from tollkeeper.http.http_exchange import HttpExchange, Link
from tollkeeper.http.request_rules import check_headers, check_version, path_of_target, split_target

# Lines.
_HEADERS_MAX = 100
# Of a chunked body at once. Small, because the parser doesn't know where it ends and may parse into the next
# request.
_CHUNKS_BYTES = 8 << 10
_HEADERS_END = b"\r\n\r\n"
# In a row; then this connection isn't cached any more: probably a proxy with many clients.
_DIFFERENT_HEADERS_MAX = 8
# An idle connection should need little memory.
_CACHED_BYTES_MAX = 4 << 10
# A real line: the match begins with a line break, which other headers' values don't have.
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*(?=\r\n)", re.IGNORECASE)
# For `parse_repeated`.
_LENGTH_DIGITS_MAX = 9
# They change how the body is read.
_UNCACHED_HEADERS = frozenset((b"expect", b"transfer-encoding"))


class _CachedHeaders(NamedTuple):
    head: RequestHead
    # Before and after the digits of the Content-Length.
    before: bytes
    after: bytes


# By the bytes before and after the digits. All connections share it; it refers weakly, so an entry goes with
# the last connection that uses it.
KnownHeaders: TypeAlias = MutableMapping[tuple[bytes, bytes], RequestHead]


class RequestParser:
    """Creates an exchange for each request, and adds its body."""

    # Class attributes, as in `HttpConnection`. A request has begun, but its headers aren't complete.
    in_head = False
    _target = b""
    # Of the current request.
    _headers: HeaderIndex
    # Lines whose name has come before.
    _duplicate_headers = 0
    # Still to come; 0 if it's chunked.
    _body_left = 0
    # Until `_ignore_upgrade`.
    _upgrading = False
    # Found in a callback; `feed` raises it.
    _refusal: TollkeeperError | None = None
    # Whose body is arriving.
    exchange: HttpExchange | None = None
    # Since the last headers, body data or request ended. Limits headers and all else that isn't body.
    overhead_bytes = 0
    # Of the last request whose headers came in one read.
    _cached: _CachedHeaders | None = None
    # In a row.
    _different_headers = 0
    # Of a body that `parse_repeated` began. It bypasses llhttp.
    _unparsed_left = 0

    def __init__(self, link: Link, header_bytes_max: int, known: KnownHeaders) -> None:
        self._link = link
        self._header_bytes_max = header_bytes_max
        self._known = known
        self._llhttp = httptools.HttpRequestParser(self)
        # In the current piece, one for each chunk, added together because a client may send millions.
        self._body_pieces: list[bytes] = []

    @property
    def has_target(self) -> bool:
        """It begins like a request."""
        return bool(self._target)

    @property
    def path(self) -> bytes:
        """With invalid or incomplete headers; empty if there's none."""
        return path_of_target(self._target)

    def feed(self, data: bytes, start: int) -> int:
        """Stops at the end of headers or body, and returns how far. Only after a chunked body may it go on
        into the next request. Raises InvalidRequest or HeadersTooLarge; the parser is then unusable."""
        if self._unparsed_left:
            return self._take_unparsed(data[start : start + self._unparsed_left])
        end = self._piece_end(data, start)
        piece = data if end - start == len(data) else data[start:end]
        begins_request = not self.overhead_bytes and self.exchange is None
        self.overhead_bytes += len(piece)
        parsed = len(piece)
        try:
            self._llhttp.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            parsed = int(upgrade.args[0])
            if self._upgrading:
                self._ignore_upgrade()
        except httptools.HttpParserError:
            raise self._refusal or _not_http() from None
        if self._refusal is not None:
            raise self._refusal
        self._add_body_pieces()
        if self.overhead_bytes > self._header_bytes_max:
            raise HeadersTooLarge
        if (
            begins_request
            and self.exchange is not None
            and self._different_headers < _DIFFERENT_HEADERS_MAX
        ):
            self._cache_headers(self.exchange, piece)
        return parsed

    def parse_repeated(self, data: bytes) -> HttpExchange | None:
        """If the headers equal the cached ones, except the length. The body may be incomplete. None
        otherwise, and within another request: the caller then uses `feed`."""
        cached = self._cached
        if cached is None or self.overhead_bytes or self.exchange is not None:
            return None
        head, before, after = cached
        start, end, body = data.partition(after)
        if not end:
            return None
        if start == b"%b%d" % (before, len(body)):
            self._different_headers = 0
            return HttpExchange(self._link, head, body=body)
        digits = start.removeprefix(before)
        is_length = digits.isdigit() and len(digits) <= _LENGTH_DIGITS_MAX
        if not is_length or start != before + digits or int(digits) <= len(body):
            return None
        self._different_headers = 0
        self._unparsed_left = int(digits)
        self.exchange = exchange = HttpExchange(
            self._link, head, content_length=self._unparsed_left
        )
        if body:
            self._take_unparsed(body)
        return exchange

    def parse_known(self, data: bytes) -> HttpExchange | None:
        """With another connection's headers, which this one then caches too."""
        if self.overhead_bytes or self.exchange is not None:
            return None
        end = data.find(_HEADERS_END) + len(_HEADERS_END)
        length = _LENGTH.search(data, 0, end)
        if length is None:
            return None
        before, after = data[: length.start(1)], data[length.end(1) : end]
        head = self._known.get((before, after))
        if head is None:
            return None
        self._cached = _CachedHeaders(head, before, after)
        return self.parse_repeated(data)

    def close(self) -> None:
        """Breaks the cycle of llhttp, connection and this object, which would last until a garbage
        collection."""
        del self._llhttp, self._link

    # Called by llhttp.

    def on_message_begin(self) -> None:
        self.in_head = True
        # It began in the piece that ended a chunked body, and `feed` hasn't counted it.
        self.overhead_bytes = self.overhead_bytes or 1
        self._headers = {}
        self._duplicate_headers = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            return  # a trailer after the body: dropped, because only headers are checked
        name = name.lower()
        value = value.strip(b" \t")
        if name not in self._headers:
            self._headers[name] = (value,)
            return
        self._duplicate_headers += 1
        if self._duplicate_headers <= _HEADERS_MAX:
            self._headers[name] += (value,)

    def on_headers_complete(self) -> None:
        self.in_head = False
        if self._refusal is not None:
            return
        if self._llhttp.should_upgrade() and self._llhttp.get_method() != b"CONNECT":
            self._upgrading = True
            return
        try:
            self._check_size()
            exchange = self._new_exchange()
        except TollkeeperError as error:
            self._refusal = error
            return
        self.overhead_bytes = 0
        self._body_left = exchange.content_length
        self.exchange = exchange
        self._link.request_begun(exchange)

    def on_body(self, body: bytes) -> None:
        self.overhead_bytes = 0
        self._body_pieces.append(body)

    def on_message_complete(self) -> None:
        if self.exchange is not None:
            self._add_body_pieces()
            self._target = b""
            self.overhead_bytes = 0
            exchange, self.exchange = self.exchange, None
            exchange.complete_body()

    # Private helpers.

    def _add_body_pieces(self) -> None:
        if self._body_pieces and self.exchange is not None:
            body = b"".join(self._body_pieces)
            if self._body_left:
                self._body_left -= len(body)
            self.exchange.add_piece(body)
        self._body_pieces.clear()

    def _cache_headers(self, exchange: HttpExchange, raw: bytes) -> None:
        if self._cached is not None:
            self._different_headers += 1
        self._cached = None
        head, lengths = exchange.head, list(_LENGTH.finditer(raw[:_CACHED_BYTES_MAX]))
        if (
            exchange.keep_alive
            and not exchange.omits_body
            and self._different_headers < _DIFFERENT_HEADERS_MAX
            and len(raw) <= _CACHED_BYTES_MAX
            and raw.endswith(_HEADERS_END)
            and len(lengths) == 1
            and _UNCACHED_HEADERS.isdisjoint(head.headers)
        ):
            start, end = lengths[0].span(1)
            before, after = raw[:start], raw[end:]
            self._cached = _CachedHeaders(head, before, after)
            self._known[before, after] = head

    def _take_unparsed(self, piece: bytes) -> int:
        exchange = self.exchange
        assert exchange is not None
        self._unparsed_left -= len(piece)
        exchange.add_piece(piece)
        if not self._unparsed_left:
            self.exchange = None
            exchange.complete_body()
        return len(piece)

    def _piece_end(self, data: bytes, start: int) -> int:
        """To the end of headers or body at most, or `_CHUNKS_BYTES` into a chunked one, whose end isn't
        known."""
        if self.exchange is not None:
            return min(len(data), start + (self._body_left or _CHUNKS_BYTES))
        end = data.find(_HEADERS_END, start)
        latest_end = start + self._header_bytes_max + 1
        return min(len(data) if end < 0 else end + len(_HEADERS_END), latest_end)

    def _ignore_upgrade(self) -> None:
        """Parses the headers again without it, because llhttp stops there."""
        self._upgrading = False
        version = self._llhttp.get_http_version().encode()
        head = [b"%b %b HTTP/%b\r\n" % (self._llhttp.get_method(), self._target, version)]
        for name, values in self._headers.items():
            if name != b"upgrade":
                head += [b"%b: %b\r\n" % (name, value) for value in values]
        self._target = b""
        self._llhttp = httptools.HttpRequestParser(self)
        try:
            self._llhttp.feed_data(b"".join([*head, b"\r\n"]))
        except httptools.HttpParserError:
            raise _not_http() from None

    def _check_size(self) -> None:
        if len(self._headers) + self._duplicate_headers > _HEADERS_MAX:
            raise HeadersTooLarge
        if self.overhead_bytes > self._header_bytes_max:
            raise HeadersTooLarge

    def _new_exchange(self) -> HttpExchange:
        llhttp = self._llhttp
        version = llhttp.get_http_version()
        method = llhttp.get_method().decode("ascii")
        check_version(version)
        check_headers(self._headers, version)
        path, query = split_target(method, self._target)
        headers, is_http10 = self._headers, version == "1.0"
        length = headers.pop(b"content-length", None)
        head = RequestHead(method, path, query, headers, is_http10=is_http10)
        exchange = HttpExchange(self._link, head)
        exchange.keep_alive = not is_http10 and llhttp.should_keep_alive()
        exchange.omits_body = method == "HEAD"
        if length is not None:
            exchange.content_length = int(length[0])
        return exchange


def _not_http() -> InvalidRequest:
    return InvalidRequest("This is not a valid HTTP request.")
