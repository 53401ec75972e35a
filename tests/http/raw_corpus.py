"""Contains raw requests and the statuses of their answers (RFC 9110 and RFC 9112).

The ideas come from parsers' test vectors and from lists of request smuggling attacks. Every case is one
connection. If the server does not close it, the test sends a further request, which must be answered.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    name: str
    raw: bytes
    statuses: tuple[int, ...]
    # Method, path and body of each request that the application answers.
    seen: tuple[tuple[str, bytes, bytes], ...] = ()
    closes: bool = False


def _get(line: bytes = b"GET / HTTP/1.1", *headers: bytes) -> bytes:
    return b"\r\n".join([line, b"Host: x", *headers, b"", b""])


def _post(*headers: bytes, body: bytes = b"") -> bytes:
    return _get(b"POST /p HTTP/1.1", *headers) + body


_A_GET = ("GET", b"/", b"")
_CHUNKED = b"Transfer-Encoding: chunked"


def _one(name: str, raw: bytes, method: str, path: bytes, body: bytes = b"") -> Case:
    return Case(name, raw, (200,), ((method, path, body),))


_ACCEPTED = [
    _one("get", _get(), "GET", b"/"),
    _one("query", _get(b"GET /a?b=c&d HTTP/1.1"), "GET", b"/a"),
    _one("empty query", _get(b"GET /a? HTTP/1.1"), "GET", b"/a"),
    _one("dots stay", _get(b"GET /a/../b/./c HTTP/1.1"), "GET", b"/a/../b/./c"),
    _one("escapes stay", _get(b"GET /%2e%2F%00 HTTP/1.1"), "GET", b"/%2e%2F%00"),
    # RFC 9112 allows servers to split a request line at any whitespace.
    _one("two blanks", _get(b"GET  / HTTP/1.1"), "GET", b"/"),
    _one("two slashes", _get(b"GET //a HTTP/1.1"), "GET", b"//a"),
    _one("long path", _get(b"GET /" + b"a" * 4000 + b" HTTP/1.1"), "GET", b"/" + b"a" * 4000),
    _one("put", _get(b"PUT /a HTTP/1.1"), "PUT", b"/a"),
    _one("patch", _get(b"PATCH /a HTTP/1.1"), "PATCH", b"/a"),
    _one("delete", _get(b"DELETE /a HTTP/1.1"), "DELETE", b"/a"),
    _one("trace", _get(b"TRACE /a HTTP/1.1"), "TRACE", b"/a"),
    _one("options", _get(b"OPTIONS /a HTTP/1.1"), "OPTIONS", b"/a"),
    _one("options for all", _get(b"OPTIONS * HTTP/1.1"), "OPTIONS", b"*"),
    _one("absolute", _get(b"GET http://y/a?b HTTP/1.1"), "GET", b"/a"),
    _one("absolute, secure", _get(b"GET https://y:443/ HTTP/1.1"), "GET", b"/"),
    _one("empty line before", b"\r\n" + _get(), "GET", b"/"),
    _one("empty lines before", b"\r\n\r\n\r\n" + _get(), "GET", b"/"),
    _one("no space behind the colon", b"GET / HTTP/1.1\r\nHost:x\r\n\r\n", "GET", b"/"),
    _one("blanks around a value", b"GET / HTTP/1.1\r\nHost: \t x \t\r\n\r\n", "GET", b"/"),
    _one("empty value", _get(b"GET / HTTP/1.1", b"X:"), "GET", b"/"),
    _one("blank value", _get(b"GET / HTTP/1.1", b"X:  \t"), "GET", b"/"),
    _one("obs-text", _get(b"GET / HTTP/1.1", b"X: \x80\xff"), "GET", b"/"),
    _one("odd names", _get(b"GET / HTTP/1.1", b"!#$%&'*+-.^_`|~0aZ: x"), "GET", b"/"),
    _one("many headers", _get(b"GET / HTTP/1.1", *([b"X: y"] * 90)), "GET", b"/"),
    _one("keep-alive", _get(b"GET / HTTP/1.1", b"Connection: keep-alive"), "GET", b"/"),
    _one("length", _post(b"Content-Length: 3", body=b"abc"), "POST", b"/p", b"abc"),
    _one("length of zero", _post(b"Content-Length: 0"), "POST", b"/p"),
    _one("length with zeros", _post(b"Content-Length: 003", body=b"abc"), "POST", b"/p", b"abc"),
    _one("length with a blank", _post(b"Content-Length: 3 ", body=b"abc"), "POST", b"/p", b"abc"),
    _one("no body", _post(), "POST", b"/p"),
    _one(
        "body is a request",
        _post(b"Content-Length: %d" % len(_get()), body=_get()),
        *("POST", b"/p", _get()),
    ),
    _one(
        "get with a body", _get(b"GET / HTTP/1.1", b"Content-Length: 2") + b"ab", "GET", b"/", b"ab"
    ),
    _one("no chunk", _post(_CHUNKED, body=b"0\r\n\r\n"), "POST", b"/p"),
    _one("chunk", _post(_CHUNKED, body=b"3\r\nabc\r\n0\r\n\r\n"), "POST", b"/p", b"abc"),
    _one("chunks", _post(_CHUNKED, body=b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"), "POST", b"/p", b"abc"),
    _one(
        "hexadecimal",
        _post(_CHUNKED, body=b"A\r\n0123456789\r\n0\r\n\r\n"),
        "POST",
        b"/p",
        b"0123456789",
    ),
    _one("zeros", _post(_CHUNKED, body=b"003\r\nabc\r\n000\r\n\r\n"), "POST", b"/p", b"abc"),
    _one(
        "extension", _post(_CHUNKED, body=b"3;a=b;c\r\nabc\r\n0;d\r\n\r\n"), "POST", b"/p", b"abc"
    ),
    _one("quoted", _post(_CHUNKED, body=b'3;a="b;c"\r\nabc\r\n0\r\n\r\n'), "POST", b"/p", b"abc"),
    _one("trailer", _post(_CHUNKED, body=b"3\r\nabc\r\n0\r\nX: y\r\n\r\n"), "POST", b"/p", b"abc"),
    _one(
        "lines in a chunk",
        _post(_CHUNKED, body=b"4\r\n\r\n\r\n\r\n0\r\n\r\n"),
        "POST",
        b"/p",
        b"\r\n\r\n",
    ),
    _one("chunked, tab", _post(b"Transfer-Encoding:\tchunked", body=b"0\r\n\r\n"), "POST", b"/p"),
    _one("CHUNKED", _post(b"TRANSFER-ENCODING: CHUNKED", body=b"0\r\n\r\n"), "POST", b"/p"),
    _one("upgrade", _get(b"GET / HTTP/1.1", b"Connection: Upgrade", b"Upgrade: h2c"), "GET", b"/"),
    _one(
        "upgrade with a body",
        _post(b"Connection: Upgrade", b"Upgrade: websocket", b"Content-Length: 3", body=b"abc"),
        *("POST", b"/p", b"abc"),
    ),
    _one(
        "upgrade with chunks",
        _post(b"Upgrade: h2c", b"Connection: upgrade", _CHUNKED, body=b"1\r\na\r\n0\r\n\r\n"),
        *("POST", b"/p", b"a"),
    ),
    _one("upgrade alone", _get(b"GET / HTTP/1.1", b"Upgrade: websocket"), "GET", b"/"),
    _one(
        "other expectation",
        _post(b"Expect: x", b"Content-Length: 1", body=b"a"),
        "POST",
        b"/p",
        b"a",
    ),
    Case("two", _get() * 2, (200,) * 2, (_A_GET,) * 2),
    Case("nine", _get() * 9, (200,) * 9, (_A_GET,) * 9),
    Case("lines between", _get() + b"\r\n" + _get(), (200,) * 2, (_A_GET,) * 2),
    Case(
        "post and get",
        _post(b"Content-Length: 3", body=b"abc") + _get(),
        (200, 200),
        (("POST", b"/p", b"abc"), _A_GET),
    ),
    Case(
        "chunks and get",
        _post(_CHUNKED, body=b"3\r\nabc\r\n0\r\nX: y\r\n\r\n") + _get() * 3,
        (200,) * 4,
        (("POST", b"/p", b"abc"), *(_A_GET,) * 3),
    ),
    Case(
        "upgrade and get",
        _post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 1", body=b"a") + _get(),
        (200, 200),
        (("POST", b"/p", b"a"), _A_GET),
    ),
]


def _last(name: str, raw: bytes) -> Case:
    """Returns a case with one answer, after which the server closes the connection."""
    return Case(name, raw, (200,), (_A_GET,), closes=True)


_LAST = [
    _last("close", _get(b"GET / HTTP/1.1", b"Connection: close")),
    _last("Close", _get(b"GET / HTTP/1.1", b"Connection: Close")),
    _last("close in a list", _get(b"GET / HTTP/1.1", b"Connection: keep-alive, close")),
    _last("close and get", _get(b"GET / HTTP/1.1", b"Connection: close") + _get()),
    _last("HTTP/1.0", b"GET / HTTP/1.0\r\n\r\n"),
    _last("HTTP/1.0 with a host", _get(b"GET / HTTP/1.0")),
    _last("HTTP/1.0 kept", _get(b"GET / HTTP/1.0", b"Connection: keep-alive")),
    _last("garbage behind", _get() + b"\x00\x00"),
    _last("brace behind", _get() + b"}"),
]


def _refused(name: str, raw: bytes, status: int = 400) -> Case:
    return Case(name, raw, (status,), closes=True)


def _refused_posts(named: dict[str, tuple[bytes, ...]]) -> list[Case]:
    body = b"3\r\nabc\r\n0\r\n\r\n" + _get()
    return [_refused(name, _post(*headers, body=body)) for name, headers in named.items()]


_FRAMING = _refused_posts(
    {
        "length and chunks": (b"Content-Length: 3", _CHUNKED),
        "chunks and length": (_CHUNKED, b"Content-Length: 3"),
        "zero and chunks": (b"Content-Length: 0", _CHUNKED),
        "two codings": (_CHUNKED, _CHUNKED),
        "coding and identity": (_CHUNKED, b"Transfer-Encoding: identity"),
        "identity": (b"Transfer-Encoding: identity",),
        "chunked, identity": (b"Transfer-Encoding: chunked, identity",),
        "identity, chunked": (b"Transfer-Encoding: identity, chunked",),
        "chunked, chunked": (b"Transfer-Encoding: chunked, chunked",),
        "gzip, chunked": (b"Transfer-Encoding: gzip, chunked",),
        "gzip": (b"Transfer-Encoding: gzip",),
        "xchunked": (b"Transfer-Encoding: xchunked",),
        "chunkedx": (b"Transfer-Encoding: chunkedx",),
        "chunked in quotes": (b'Transfer-Encoding: "chunked"',),
        "chunked;": (b"Transfer-Encoding: chunked;",),
        "empty coding": (b"Transfer-Encoding:",),
        "coding and blank": (b"Transfer-Encoding : chunked",),
        "blank and coding": (b" Transfer-Encoding: chunked",),
        "vertical tab": (b"Transfer-Encoding: \x0bchunked",),
        "form feed": (b"Transfer-Encoding: chunked\x0c",),
        "folded coding": (b"Transfer-Encoding:", b" chunked"),
        "folded list": (b"Transfer-Encoding: chunked", b"\t, identity"),
        "coding behind a line feed": (b"X: y\nTransfer-Encoding: chunked",),
        "coding behind a return": (b"X: y\rTransfer-Encoding: chunked",),
        "coding in a name": (b"X:y\r\n\r: z", _CHUNKED),
        "two lengths": (b"Content-Length: 3", b"Content-Length: 4"),
        "two equal lengths": (b"Content-Length: 3", b"Content-Length: 3"),
        "list of lengths": (b"Content-Length: 3, 3",),
        "plus": (b"Content-Length: +3",),
        "minus": (b"Content-Length: -3",),
        "hexadecimal length": (b"Content-Length: 0x3",),
        "exponent": (b"Content-Length: 3e0",),
        "point": (b"Content-Length: 3.0",),
        "underscore": (b"Content-Length: 1_0",),
        "blank inside": (b"Content-Length: 1 0",),
        "no digits": (b"Content-Length:",),
        "letters": (b"Content-Length: three",),
        "other digits": ("Content-Length: ٣".encode(),),
        "2^64": (b"Content-Length: 18446744073709551616",),
        "many digits": (b"Content-Length: " + b"9" * 100,),
        "blank before the colon": (b"Content-Length : 3",),
        "tab before the colon": (b"Content-Length\t: 3",),
        "folded length": (b"Content-Length:", b" 3"),
    }
)


def _refused_headers(named: dict[str, bytes]) -> list[Case]:
    return [_refused(name, _get(b"GET / HTTP/1.1", header)) for name, header in named.items()]


_HEADERS = _refused_headers(
    {
        "no colon": b"X",
        "no name": b": x",
        "blank in a name": b"X Y: z",
        "bracket in a name": b"X(: y",
        "at in a name": b"X@: y",
        "slash in a name": b"X/: y",
        "quote in a name": b'"X": y',
        "high byte in a name": b"X\xe9: y",
        "NUL in a name": b"X\x00: y",
        "NUL in a value": b"X: \x00",
        "bell in a value": b"X: \x07",
        "delete in a value": b"X: \x7f",
        "bare return": b"X: y\rz",
        "bare line feed": b"X: y\nZ: a",
        "line feed first": b"\nX: y",
        "folded": b"X: y\r\n z",
        "folded by a tab": b"X: y\r\n\tz",
        "second host": b"Host: x",
        "other host": b"Host: y",
    }
)

_STARTS = [
    _refused("no host", b"GET / HTTP/1.1\r\n\r\n"),
    *(
        _refused(f"host {host!r}", b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        for host in (b"a b", b"a@b", b"a/b", b"a:b", b"a:65536", b"[::1", b"a,b/c", b"\xff")
    ),
    *(
        _refused(f"line {line!r}", _get(line))
        for line in (
            *(b"GET / HTTP/2.0", b"GET / HTTP/1.2", b"GET / HTTP/0.9", b"GET / HTTP/3", b"GET /"),
            *(b"GET / http/1.1", b"GET / HTTP/1.1 ", b"GET / HTTP /1.1", b"GET / HTTPS/1.1"),
            *(b"GET / HTTP/1.1x", b"GET / HTTP/11", b"GET / HTTP/1,1", b"GET / ICE/1.0"),
            *(b"GET\t/ HTTP/1.1", b"GET /\tHTTP/1.1", b"GET / / HTTP/1.1"),
            *(b"get / HTTP/1.1", b"Get / HTTP/1.1", b"FROB / HTTP/1.1", b"G@T / HTTP/1.1"),
            *(b" GET / HTTP/1.1", b"GET HTTP/1.1", b"/ HTTP/1.1", b"HTTP/1.1 200 OK"),
            *(b"GET /#a HTTP/1.1", b"GET * HTTP/1.1", b"POST * HTTP/1.1", b"GET a HTTP/1.1"),
            *(b"GET /\xc3\xa9 HTTP/1.1", b"GET /\x00 HTTP/1.1", b"GET /\x7f HTTP/1.1"),
            *(b"GET http:/// HTTP/1.1", b"GET http://a@b/ HTTP/1.1", b"GET ftp://x/ HTTP/1.1"),
            *(b"CONNECT x:443 HTTP/1.1", b"CONNECT / HTTP/1.1", b"PRI * HTTP/2.0"),
        )
    ),
    _refused("line feeds", b"GET / HTTP/1.1\nHost: x\n\n"),
    _refused("returns", b"GET / HTTP/1.1\rHost: x\r\r\n\r\n"),
    _refused("last line feed", b"GET / HTTP/1.1\r\nHost: x\r\n\n"),
    _refused("NUL first", b"\x00" + _get()),
    _refused("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    _refused("SSH", b"SSH-2.0-OpenSSH_9.6\r\n"),
    _refused("coding in HTTP/1.0", _get(b"POST / HTTP/1.0", _CHUNKED) + b"0\r\n\r\n"),
    _refused("many headers refused", _get(b"GET / HTTP/1.1", *([b"X: y"] * 120)), 431),
    _refused("long header refused", _get(b"GET / HTTP/1.1", b"X: " + b"y" * 20_000), 431),
    Case("bad second", _get() + _get(b"GET / HTTP/9.9"), (200, 400), (_A_GET,), closes=True),
    Case(
        "two, bad third",
        _get() * 2 + _get(b"GET /#a HTTP/1.1"),
        (200, 200, 400),
        (_A_GET,) * 2,
        closes=True,
    ),
    Case(
        "bad behind chunks",
        _post(_CHUNKED, body=b"0\r\n\r\n") + _get(b"GET / HTTP/1.1", b"X Y: z"),
        (200, 400),
        (("POST", b"/p", b""),),
        closes=True,
    ),
]

_CHUNKS = [
    _refused(f"chunks {body!r}"[:60], _post(_CHUNKED, body=body + b"\r\n0\r\n\r\n" + _get()))
    for body in (
        *(
            b"x\r\na",
            b"-1\r\na",
            b"+1\r\na",
            b"0x1\r\na",
            b" 1\r\na",
            b"\t1\r\na",
            b"\r\na",
            b";a\r\na",
        ),
        *(
            b"1\na",
            b"1\r\nab",
            b"1\r\na\n",
            b"2\r\na",
            b"1\ra",
            b"1\r\na\r",
            b"1 2\r\na",
            b"1,\r\na",
        ),
        *(b"ffffffffffffffff1\r\na", b"10000000000000000\r\na", b"1;a\nb\r\na", b"1;\x00\r\na"),
        *(b"1\r\na\r\n0\r\nX Y: z\r\n", b"1\r\na\r\n0\r\nX\r\n", b"1\r\na\r\n0\r\n y\r\n"),
    )
]

CORPUS = [*_ACCEPTED, *_LAST, *_FRAMING, *_HEADERS, *_STARTS, *_CHUNKS]
