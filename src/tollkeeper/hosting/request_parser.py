"""Parses requests. llhttp (httptools) does the framing and rejects ambiguous requests; this class
limits sizes, checks headers, and reads past an Upgrade.

An Upgrade is ignored, as RFC 9110 allows: the request is answered as if it had none.

A client sends nearly the same headers with each request: only the length of the body differs. Such
headers were parsed and checked before, so they are only compared (`RequestParser.repeated`).
Without the comparison, a call with four headers takes 1,260 more bytecodes, 12 % of the call,
because the headers are also routed and checked again. An SDK sends eighteen headers.
"""

import re
from enum import Enum
from typing import NamedTuple

import httptools

from tollkeeper.api.http.endpoint import HeaderIndex
from tollkeeper.api.http.envelope import HeadersTooLarge
from tollkeeper.api.http.exchange import RequestHead
from tollkeeper.domain.errors import InvalidRequest, TollkeeperError
from tollkeeper.hosting.http_exchange import HttpExchange, Link
from tollkeeper.hosting.request_rules import check_headers, check_version, split_target

_HEADERS_MAX = 100
# How much of a chunked body is parsed at once: data after its end is parsed with it.
_CHUNKS_BYTES = 8 << 10
_HEADERS_END = b"\r\n\r\n"
# After this many different headers, none are cached any more: a proxy sends the requests of many
# clients over a connection.
_DIFFERENT_HEADERS_MAX = 8
# Larger headers are not cached, because an idle connection should need little memory.
_CACHED_BYTES_MAX = 4 << 10
# The line is found by its beginning, and a value has no line breaks, so nothing else looks like it.
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*(?=\r\n)", re.IGNORECASE)
_LENGTH_DIGITS_MAX = 10
# Headers that change the meaning of the bytes after the headers.
_SPECIAL = (b"expect", b"transfer-encoding")


class _Phase(Enum):
    # Between requests.
    IDLE = 0
    HEAD = 1
    BODY = 2


class _CachedHeaders(NamedTuple):
    head: RequestHead
    # The bytes before and after the digits of the body's length.
    before: bytes
    behind: bytes


class RequestParser:
    """Parses one connection, and fills in the bodies of the exchanges that it creates."""

    def __init__(self, receiver: Link, header_bytes_max: int) -> None:
        self._receiver = receiver
        self._header_bytes_max = header_bytes_max
        self._llhttp = httptools.HttpRequestParser(self)
        self._phase = _Phase.IDLE
        self._target = b""
        self._headers: HeaderIndex = {}
        self._repeats = 0
        # The rest of a body whose length was declared; 0 for a chunked one.
        self._body_left = 0
        self._upgrading = False
        self._refusal: TollkeeperError | None = None
        # The request whose body is arriving.
        self.exchange: HttpExchange | None = None
        # Bytes received since the last complete headers, body piece or end of a request.
        self.overhead_bytes = 0
        # The last request's headers, if they came in one piece, and the number of successive
        # requests whose headers differed from the previous one's.
        self._cached: _CachedHeaders | None = None
        self._different_headers = 0
        # The rest of the body of a request with recognised headers, which bypasses llhttp.
        self._unparsed_left = 0

    @property
    def in_head(self) -> bool:
        """Tells whether headers have begun and are not complete."""
        return self._phase is _Phase.HEAD

    @property
    def has_target(self) -> bool:
        """Tells whether a method was read, so that the data begins like a request."""
        return bool(self._target)

    def feed(self, data: bytes, start: int) -> int:
        """Parses from `start` on, at most to the end of one request's headers or body, and returns
        the number of parsed bytes. Raises InvalidRequest or HeadersTooLarge; then nothing more can
        be parsed."""
        if self._unparsed_left:
            return self._take_unparsed(data[start : start + self._unparsed_left])
        end = self._piece_end(data, start)
        piece = data if end - start == len(data) else data[start:end]
        begins = not self.overhead_bytes and self.exchange is None
        self.overhead_bytes += len(piece)
        used = len(piece)
        try:
            self._llhttp.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            used = int(upgrade.args[0])
            if self._upgrading:
                self._ignore_upgrade()
        except httptools.HttpParserError:
            raise self._refusal or _not_http() from None
        if self._refusal is not None:
            raise self._refusal
        if self.overhead_bytes > self._header_bytes_max:
            raise HeadersTooLarge
        if (
            begins
            and self.exchange is not None
            and self._different_headers < _DIFFERENT_HEADERS_MAX
        ):
            self._cache_headers(self.exchange, piece)
        return used

    def repeated(self, data: bytes) -> HttpExchange | None:
        """Returns the request in `data` if it has the same headers as the previous one. Returns
        None if that is unknown: then `data` has to be fed. No request may be in progress."""
        cached = self._cached
        if cached is None or self.overhead_bytes or self.exchange is not None:
            return None
        head, before, behind = cached
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + _LENGTH_DIGITS_MAX)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(behind, end):
            return None
        length, body = int(digits), data[end + len(behind) :]
        if len(body) > length:
            return None
        self._different_headers = 0
        exchange = HttpExchange(self._receiver, head, length, keep_alive=True)
        if len(body) == length:
            exchange.body = body
        else:
            self.exchange, self._unparsed_left = exchange, length
            if body:
                self._take_unparsed(body)
        return exchange

    def close(self) -> None:
        """Ends parsing. llhttp, the connection and this object refer to each other, and would stay
        in memory until a garbage collection."""
        del self._llhttp, self._receiver

    # Called by llhttp.

    def on_message_begin(self) -> None:
        self._phase = _Phase.HEAD
        self._headers = {}
        self._repeats = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is not _Phase.HEAD:
            return  # trailers are dropped: they come after the headers were checked
        name = name.lower()
        value = value.strip(b" \t")
        if name not in self._headers:
            self._headers[name] = (value,)
            return
        self._repeats += 1
        if self._repeats <= _HEADERS_MAX:
            self._headers[name] += (value,)

    def on_headers_complete(self) -> None:
        self._phase = _Phase.BODY
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
        self._receiver.request_begun(exchange)

    def on_body(self, body: bytes) -> None:
        self.overhead_bytes = 0
        if self.exchange is not None:
            if self._body_left:
                self._body_left -= len(body)
            self.exchange.add_piece(body)

    def on_message_complete(self) -> None:
        if self.exchange is not None:
            self._phase = _Phase.IDLE
            self._target = b""
            self.overhead_bytes = 0
            exchange, self.exchange = self.exchange, None
            exchange.completed()

    # Private helpers.

    def _cache_headers(self, exchange: HttpExchange, raw: bytes) -> None:
        if self._cached is not None:
            self._different_headers += 1
        self._cached = None
        head, lengths = exchange.head, list(_LENGTH.finditer(raw[:_CACHED_BYTES_MAX]))
        if (
            exchange.keep_alive
            and self._different_headers < _DIFFERENT_HEADERS_MAX
            and len(raw) <= _CACHED_BYTES_MAX
            and raw.endswith(_HEADERS_END)
            and len(lengths) == 1
            and not any(name in head.headers for name in _SPECIAL)
        ):
            start, end = lengths[0].span(1)
            self._cached = _CachedHeaders(head, raw[:start], raw[end:])

    def _take_unparsed(self, piece: bytes) -> int:
        exchange = self.exchange
        assert exchange is not None
        self._unparsed_left -= len(piece)
        exchange.add_piece(piece)
        if not self._unparsed_left:
            self.exchange = None
            exchange.completed()
        return len(piece)

    def _piece_end(self, data: bytes, start: int) -> int:
        """Returns the end of a piece that contains at most one request's headers or body."""
        if self.exchange is not None:
            return min(len(data), start + (self._body_left or _CHUNKS_BYTES))
        end = data.find(_HEADERS_END, start)
        bound = start + self._header_bytes_max + 1
        return min(len(data) if end < 0 else end + len(_HEADERS_END), bound)

    def _ignore_upgrade(self) -> None:
        """Parses the headers again without the Upgrade, because llhttp stops parsing HTTP after
        it."""
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
        if len(self._headers) + self._repeats > _HEADERS_MAX:
            raise HeadersTooLarge
        # The bytes since the last request contain the headers, and rarely much more.
        if self.overhead_bytes > self._header_bytes_max:
            size = len(self._target)
            for name, values in self._headers.items():
                size += sum(len(name) + len(value) + 4 for value in values)
            if size > self._header_bytes_max:
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
        return HttpExchange(
            self._receiver,
            RequestHead(method, path, query, headers, is_http10=is_http10),
            int(length[0]) if length is not None else 0,
            keep_alive=not is_http10 and llhttp.should_keep_alive(),
        )


def _not_http() -> InvalidRequest:
    return InvalidRequest("This is not a valid HTTP request.")
