"""Checks every request before it reaches a page (Host header, origin, body size, session), and adds
security headers to every response."""

import asyncio
from urllib.parse import quote

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tollkeeper.console.sessions import COOKIE, Sessions
from tollkeeper.console.small_bodies import BodyTooLarge, BodyTooSlow, SmallBodies
from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.request_ids import new_request_id_text

# The limit for the body of a request with a session. `small_bodies` has the limit for all others.
BODY_BYTES_MAX = 4 * 1024 * 1024
# The maximum time between two pieces of a request body.
_BODY_TIMEOUT_S = 60
_SIGN_IN = "/sign-in"
# The beginnings of paths that need no session. Payment events (`/webhooks/`) are signed instead.
_WITHOUT_SESSION = ("/static/", "/healthz", "/webhooks/")
_SAFE_METHODS = frozenset({"GET", "HEAD"})
# The header by which console.js marks automatic refreshes.
_REFRESH = "x-refresh"

# Plotly's script adds a style element for maps. Only this element is allowed, by the hash of its
# text; all other inline styles are forbidden. The styles of Plotly's charts are in console.css
# instead (see templates/base.html).
_PLOTLY_STYLE = "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='"
CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' {_PLOTLY_STYLE}",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Wraps the console's application as ASGI middleware."""

    def __init__(
        self, app: ASGIApp, *, sessions: Sessions, hosts: frozenset[str], secure: bool
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = hosts
        self._secure = secure
        self._small_bodies = SmallBodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["request_id"] = new_request_id_text()
        with structlog.contextvars.bound_contextvars(request_id=scope["request_id"]):
            await self._answer(scope, receive, self._with_headers(scope, send))

    async def _answer(self, scope: Scope, receive: Receive, respond: Send) -> None:
        refusal = await self._refusal(scope, Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, respond)
            return
        try:
            if scope["session"] is None and scope["method"] not in _SAFE_METHODS:
                body = await self._small_bodies.read(Request(scope, receive))
                await self._app(scope, _replaying(body, receive), respond)
            else:
                await self._app(scope, _limited(receive), respond)
        except BodyTooLarge:
            await PlainTextResponse("The form is too large.", 413)(scope, receive, respond)
        except BodyTooSlow:
            text = "The body did not arrive in time."
            await PlainTextResponse(text, 408)(scope, receive, respond)
        except ClientDisconnect:
            return

    async def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Returns the response to a request that must not reach a page: an error, or a redirect to
        the sign-in page. If the request is acceptable, returns None and stores the session (None
        without a session) in `scope`."""
        host = headers.get("host", "").lower()
        if _without_port(host) not in self._hosts:
            # Prevents DNS rebinding: another site could point its own host name at the console's
            # address and then read the console's pages.
            return PlainTextResponse("This console is not served under this host name.", 421)
        method, path = scope["method"], scope["path"]
        if method not in _SAFE_METHODS and not _same_origin(headers, host):
            return PlainTextResponse("This form comes from another site.", 403)
        if _length(headers) > BODY_BYTES_MAX:
            return PlainTextResponse("The form is too large.", 413)
        scope["session"] = None
        if path.startswith(_WITHOUT_SESSION):
            return None
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        try:
            # Automatic refreshes and live tails do not count as use, so an idle session can expire.
            used = _REFRESH not in headers and headers.get("accept") != "text/event-stream"
            scope["session"] = await self._sessions.read(cookie, used=used)
        except Unavailable as exc:
            return PlainTextResponse(exc.message, 503)
        if scope["session"] is None and not path.startswith(_SIGN_IN):
            next_page = path if method in _SAFE_METHODS else "/"
            query = scope["query_string"].decode("latin-1") if method in _SAFE_METHODS else ""
            target = quote(next_page + (f"?{query}" if query else ""), safe="/")
            return RedirectResponse(f"/sign-in?next={target}", 303)
        return None

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        cacheable = scope["path"].startswith("/static/")

        async def respond(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers["X-Request-ID"] = scope["request_id"]
                if not cacheable:
                    headers["Cache-Control"] = "no-store"
                if self._secure:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        return respond


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Returns the body as one message. The next message can only say that the client disconnected."""
    message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def receive_again() -> Message:
        nonlocal message
        first, message = message, None
        return first or await receive()

    return receive_again


def _limited(receive: Receive) -> Receive:
    """Limits the size of the request body, and the time to wait for each piece of the body."""
    received_bytes, complete = 0, False

    async def receive_limited() -> Message:
        nonlocal received_bytes, complete
        if complete:  # Only the disconnect message can follow, possibly much later.
            return await receive()
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            message = await receive()
        complete = not message.get("more_body", False)
        received_bytes += len(message.get("body", b""))
        if received_bytes > BODY_BYTES_MAX:
            raise BodyTooLarge
        return message

    return receive_limited


def _same_origin(headers: Headers, host: str) -> bool:
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site", "same-origin")
    return site in ("same-origin", "none") and (
        origin is None or origin.partition("://")[2].lower() == host
    )


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdecimal() else BODY_BYTES_MAX + 1
