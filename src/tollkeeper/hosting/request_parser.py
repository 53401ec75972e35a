"""Parses the HTTP requests of a connection.

The library llhttp (through httptools) finds where headers and bodies begin and end, and rejects
ambiguous requests. `RequestParser` limits sizes and checks headers. It ignores an Upgrade header, as
RFC 9110 allows.

A client usually sends the same headers with each request, except for the length of the body. If the
headers equal those of an earlier request, `RequestParser.parse_repeated` reuses the parsed headers. The
application also reuses its results for these headers, such as the endpoint and the key. For a call with
four headers, this reuse saves about 1,260 bytecodes. SDKs send more headers, for example eighteen.

A client with several connections sends the same headers on each of them. So `RequestParser.parse_known`
also reuses the headers of another open connection.
"""

import re
from collections.abc import MutableMapping
from typing import NamedTuple, TypeAlias

import httptools

from tollkeeper.api.http.endpoint import HeaderIndex
from tollkeeper.api.http.envelope import HeadersTooLarge
from tollkeeper.api.http.exchange import RequestHead
from tollkeeper.domain.errors import InvalidRequest, TollkeeperError
from tollkeeper.hosting.http_exchange import HttpExchange, Link
from tollkeeper.hosting.request_rules import (
    check_headers,
    check_version,
    path_of_target,
    split_target,
)

# The maximum number of header lines in a request.
_HEADERS_MAX = 100
# The maximum number of bytes of a chunked body that are parsed at once. It is small because the parser does
# not know in advance where the body ends, and may parse the beginning of the next request too.
_CHUNKS_BYTES = 8 << 10
_HEADERS_END = b"\r\n\r\n"
# After this many requests in succession with different headers, this connection's headers are no
# longer cached. The connection probably comes from a proxy with many clients.
_DIFFERENT_HEADERS_MAX = 8
# Larger headers are not cached, because an idle connection should need little memory.
_CACHED_BYTES_MAX = 4 << 10
# Matches only a real Content-Length line: the match begins with a line break, and the values of other
# headers contain no line breaks.
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*(?=\r\n)", re.IGNORECASE)
# The maximum number of digits of a Content-Length that `parse_repeated` accepts.
_LENGTH_DIGITS_MAX = 9
# Headers that include one of these are not cached, because these change how the body is read.
_UNCACHED_HEADERS = frozenset((b"expect", b"transfer-encoding"))


class _CachedHeaders(NamedTuple):
    head: RequestHead
    # The bytes of the headers before and after the digits of the Content-Length.
    before: bytes
    after: bytes


# The parsed headers of open connections, by the bytes before and after the digits of the Content-Length.
# All connections of a server share one such mapping. It refers weakly to its values, so an entry disappears
# when no connection uses its headers any more.
KnownHeaders: TypeAlias = MutableMapping[tuple[bytes, bytes], RequestHead]


class RequestParser:
    """Parses the data of one connection. Creates an exchange for each request, and adds the request's
    body to it."""

    # The defaults are class attributes, as in `HttpConnection`.
    # True if a request has begun to arrive, but its headers are not complete.
    in_head = False
    _target = b""
    # The headers of the current request.
    _headers: HeaderIndex
    # The number of header lines whose name has already occurred in this request.
    _duplicate_headers = 0
    # The number of body bytes that are still to come; 0 if the body is chunked.
    _body_left = 0
    # True if the current request has an Upgrade header, until `_ignore_upgrade` is called.
    _upgrading = False
    # An error that a callback of llhttp has found. `feed` raises it.
    _refusal: TollkeeperError | None = None
    # The request whose body is arriving.
    exchange: HttpExchange | None = None
    # The number of bytes since the end of the last headers, body data or request. It limits the size of
    # headers, and of everything else that is not body data.
    overhead_bytes = 0
    # The headers of the last request whose headers arrived in one read, if they can be cached.
    _cached: _CachedHeaders | None = None
    # The number of requests in succession whose headers differed from the cached headers.
    _different_headers = 0
    # The number of body bytes still to come for a request that `parse_repeated` returned. They bypass
    # llhttp.
    _unparsed_left = 0

    def __init__(self, link: Link, header_bytes_max: int, known: KnownHeaders) -> None:
        self._link = link
        self._header_bytes_max = header_bytes_max
        self._known = known
        self._llhttp = httptools.HttpRequestParser(self)
        # The parts of the body that llhttp has found in the current piece: one for each chunk. They are
        # added to the exchange together, because a client may send millions of chunks.
        self._body_pieces: list[bytes] = []

    @property
    def has_target(self) -> bool:
        """Tells whether the data begins like a request: a method and a part of the target were read."""
        return bool(self._target)

    @property
    def path(self) -> bytes:
        """Returns the path of a request whose headers are invalid or incomplete; empty if it has none."""
        return path_of_target(self._target)

    def feed(self, data: bytes, start: int) -> int:
        """Parses `data` from `start` on. Stops at the end of a request's headers or body, and returns the
        number of parsed bytes. Only after a chunked body may it also parse the beginning of the next request.
        Raises InvalidRequest or HeadersTooLarge. After an error, the parser cannot be used any more."""
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
        """Returns the request in `data` if its headers, except the Content-Length, equal the cached headers.
        Its body may still be incomplete. Otherwise, and while another request is being parsed, returns None;
        the caller then has to pass `data` to `feed`."""
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
        """Works like `parse_repeated`, for headers that another connection has cached. Also caches them for
        this connection."""
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
        """Ends parsing. Removes the references between llhttp, the connection and this object, because
        the cycle would keep all three in memory until a garbage collection."""
        del self._llhttp, self._link

    # Called by llhttp.

    def on_message_begin(self) -> None:
        self.in_head = True
        # A request that begins in the same piece in which a chunked body ends: `feed` has not counted it.
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
        """Returns the position up to which `data` may be parsed at once: at most to the end of the current
        headers or body, or by `_CHUNKS_BYTES` further in a chunked body, whose end is not known."""
        if self.exchange is not None:
            return min(len(data), start + (self._body_left or _CHUNKS_BYTES))
        end = data.find(_HEADERS_END, start)
        latest_end = start + self._header_bytes_max + 1
        return min(len(data) if end < 0 else end + len(_HEADERS_END), latest_end)

    def _ignore_upgrade(self) -> None:
        """Parses the headers again without the Upgrade header, because llhttp stops after a request with
        that header."""
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
