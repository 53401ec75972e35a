"""Serves the console's style sheet, scripts and icon, and Plotly's script from the installed
package."""

import gzip
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

_STATIC_FOLDER = Path(__file__).parent / "static"


def _plotly() -> Path:
    """Finds Plotly's script in the installed package without importing the package."""
    package = find_spec("plotly")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "package_data" / "plotly.min.js"


_FILES = {
    "console.css": (_STATIC_FOLDER / "console.css", "text/css; charset=utf-8"),
    "console.js": (_STATIC_FOLDER / "console.js", "text/javascript; charset=utf-8"),
    "charts.js": (_STATIC_FOLDER / "charts.js", "text/javascript; charset=utf-8"),
    "icon.svg": (_STATIC_FOLDER / "icon.svg", "image/svg+xml"),
    "plotly.js": (_plotly(), "text/javascript; charset=utf-8"),
}
_COMPRESSION = 6
_PIECE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    compressed: bytes
    media_type: str
    etag: str


@cache
def _read(name: str) -> StaticFile:
    path, media_type = _FILES[name]
    content = path.read_bytes()
    return StaticFile(
        content,
        gzip.compress(content, _COMPRESSION),
        media_type,
        f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    )


async def static_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        return PlainTextResponse("There is no such file.", 404)
    found = _read(name)
    headers = {"ETag": found.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return _in_pieces(found.compressed, found.media_type, headers)
    return _in_pieces(found.content, found.media_type, headers)


def _in_pieces(content: bytes, media_type: str, headers: dict[str, str]) -> Response:
    """The server copies what it sends. So a client that doesn't read must not get a large file at once."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), _PIECE_BYTES):
            yield content[start : start + _PIECE_BYTES]

    headers["Content-Length"] = str(len(content))
    return StreamingResponse(pieces(), media_type=media_type, headers=headers)
