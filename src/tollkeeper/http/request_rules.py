"""The rules of RFC 9110 and 9112 that llhttp doesn't check."""

import re

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.http.exchange import SERVER_WIDE, HeaderIndex

# A host name, IPv4, or IPv6 in brackets, with an optional port. In linear time: alternatives begin
# differently, and no part can match the beginning of the next.
_AUTHORITY = re.compile(
    rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>[0-9]{0,5}))?"
)
# A target that is a whole URL.
_ABSOLUTE = re.compile(rb"https?://(?P<authority>[^/?#]*)(?P<rest>/.*)", re.IGNORECASE | re.DOTALL)
_PORT_MAX = 65535


def check_version(version: str) -> None:
    if version not in ("1.1", "1.0"):
        raise InvalidRequest("This server speaks HTTP/1.1 and HTTP/1.0 only.")


def check_headers(headers: HeaderIndex, version: str) -> None:
    """Host, and Transfer-Encoding."""
    hosts = headers.get(b"host", ())
    if len(hosts) > 1 or (not hosts and version != "1.0"):
        raise InvalidRequest("The request needs exactly one Host header.")
    if hosts:
        _check_authority(hosts[0], "The Host header is not valid.")
    codings = headers.get(b"transfer-encoding")
    if codings is not None:
        if version == "1.0":
            raise InvalidRequest("An HTTP/1.0 request cannot have a Transfer-Encoding.")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise InvalidRequest("The only accepted Transfer-Encoding is chunked.")


def split_target(method: str, target: bytes) -> tuple[bytes, bytes]:
    """Path and query, not decoded. `OPTIONS *` has the path `*`."""
    if method == "CONNECT":
        raise InvalidRequest("This server is not a proxy.")
    if not target.startswith(b"/"):
        if target == SERVER_WIDE and method == "OPTIONS":
            return target, b""
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is None:
            raise InvalidRequest("The request target is not valid.")
        if not absolute["authority"]:
            raise InvalidRequest("The request target names no host.")
        _check_authority(absolute["authority"], "The host in the request target is not valid.")
        target = absolute["rest"]
    if b"#" in target:
        raise InvalidRequest("A request target cannot have a fragment.")
    if not target.isascii():
        raise InvalidRequest("The request target is not ASCII.")
    path, _, query = target.partition(b"?")
    return path, query


def path_of_target(target: bytes) -> bytes:
    """For an error; empty if the target is invalid."""
    try:
        return split_target("", target)[0]
    except InvalidRequest:
        return b""


def path_of_request_line(data: bytes) -> bytes:
    """Like `path_of_target`."""
    return path_of_target(data.lstrip(b"\r\n").partition(b" ")[2].partition(b" ")[0])


def _check_authority(authority: bytes, message: str) -> None:
    match = _AUTHORITY.fullmatch(authority)
    if match is None or (match["port"] and int(match["port"]) > _PORT_MAX):
        raise InvalidRequest(message)
