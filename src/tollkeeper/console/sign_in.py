"""Signs users in with the operator token or through the identity provider, and signs them out."""

import base64
import binascii
import hmac
import re

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tollkeeper.console.changes import checked_form, status_of
from tollkeeper.console.context import Console, whole_console
from tollkeeper.console.forms import read_form
from tollkeeper.console.identity_provider import NoRole, PendingSignIn
from tollkeeper.console.places import network_of_client
from tollkeeper.console.rendering import render_outside
from tollkeeper.console.sessions import COOKIE, TOKEN_HOLDER
from tollkeeper.console.stored_sessions import SESSION_S
from tollkeeper.core.errors import NotFound, PermissionDenied, RateLimited, TollkeeperError
from tollkeeper.tenants.audit.rule import Actor, ActorKind
from tollkeeper.tenants.audit.service import acting_as
from tollkeeper.tenants.people import Person

_ADDRESS = re.compile(r"/(?![/\\])[^\s\\]{0,2000}")
# The cookie with the encrypted PendingSignIn. Its SameSite attribute is Lax, because the browser
# has to send the cookie when the provider's page redirects back to the console.
PENDING_COOKIE = "tollkeeper_sign_in"
_PENDING_PATH = "/sign-in"
# The maximum time between the two steps of a sign-in.
_PENDING_S = 600
_SEAL_PURPOSE = "console-sign-in"
_SIGNED_OUT = "signed-out"
_STALE = "This sign-in has expired or was already used. Sign in again."
_log = structlog.get_logger("tollkeeper.console")


async def show_sign_in(request: Request) -> Response:
    next_page = _own_address(request.query_params.get("next", "/"))
    if request.scope["session"] is not None:
        return RedirectResponse(next_page, 303)
    notice = "You are signed out." if request.query_params.get("notice") == _SIGNED_OUT else ""
    return _page(request, next_page, "", notice)


async def sign_in(request: Request) -> Response:
    console = whole_console(request)
    form = await read_form(request)
    next_page = _own_address(form.text("next", default="/"))
    if not console.sessions.token_is_right(form.text("token", default="")):
        return _refused(request, next_page, console.wrong_tokens.count(network_of_client(request)))
    response = RedirectResponse(next_page, 303)
    await _begin_session(request, response, TOKEN_HOLDER, console.sessions.token_credential)
    return response


async def show_provider(request: Request) -> Response:
    """Begins a sign-in: sets `PENDING_COOKIE` and redirects the browser to the provider."""
    console = whole_console(request)
    next_page = _own_address(request.query_params.get("next", "/"))
    try:
        if console.provider is None:
            raise NotFound("There is no such page.")
        address, pending = await console.provider.begin(next_page, _callback(request))
    except TollkeeperError as exc:
        return _problem(request, next_page, exc)
    response = RedirectResponse(address, 303)
    sealed = console.vault.seal(msgspec.json.encode(pending), _SEAL_PURPOSE)
    response.set_cookie(
        PENDING_COOKIE,
        base64.urlsafe_b64encode(sealed).decode(),
        max_age=_PENDING_S,
        path=_PENDING_PATH,
        httponly=True,
        samesite="lax",
        secure=console.secure,
    )
    return response


async def finish_sign_in(request: Request) -> Response:
    """Signs the user in when the provider redirects the browser back to the console. Each such
    redirect can be used only once."""
    console, next_page = whole_console(request), "/"
    try:
        pending = _pending(console, request)
        next_page = pending.next_page
        person = await _person(console, request, pending)
    except TollkeeperError as exc:
        response = _problem(request, next_page, exc)
    else:
        credential = console.sessions.sign_in_credential
        assert credential is not None, "there is an identity provider"
        # Returns a page instead of a redirect. The session cookie has SameSite=Strict, so after a
        # navigation from another site, the browser would not send the cookie to the target of a
        # redirect.
        response = render_outside("signed_in.html", next=next_page, person=person)
        await _begin_session(request, response, person, credential)
        _log.info("a person has signed in", subject=person.subject, role=person.role)
    response.delete_cookie(
        PENDING_COOKIE, path=_PENDING_PATH, httponly=True, samesite="lax", secure=console.secure
    )
    return response


def _pending(console: Console, request: Request) -> PendingSignIn:
    """Returns the sign-in that this browser began. Raises PermissionDenied if the request belongs
    to another sign-in, or if the sign-in has expired or was used before."""
    try:
        sealed = base64.urlsafe_b64decode(request.cookies.get(PENDING_COOKIE, ""))
    except (binascii.Error, ValueError):
        sealed = b""
    plain = console.vault.unseal(sealed, _SEAL_PURPOSE)
    if plain is None:
        raise PermissionDenied(_STALE)
    pending = msgspec.json.decode(plain, type=PendingSignIn)
    state = request.query_params.get("state", "")
    if (
        not hmac.compare_digest(state.encode(), pending.state.encode())
        or pending.began_at + _PENDING_S <= console.services.clock()
        or console.sessions.was_sent_before(f"sign-in {state}")
    ):
        raise PermissionDenied(_STALE)
    return pending


async def _person(console: Console, request: Request, pending: PendingSignIn) -> Person:
    query, sessions = request.query_params, console.sessions
    issuer = console.settings.console.sign_in.issuer
    if console.provider is None or query.get("iss", issuer) != issuer:
        raise PermissionDenied(_STALE)
    if "code" not in query:
        # Does not show the `error` parameter, because the author of a link can put any text into
        # it.
        raise PermissionDenied("The identity provider did not sign you in.")
    network = network_of_client(request)
    wait_s = console.wrong_codes.wait_s(network)
    if wait_s:
        text = f"Too many sign-ins from your network have failed. Try again in {wait_s} seconds."
        raise RateLimited(text, retry_after_s=wait_s)
    try:
        person = await console.provider.finish(query["code"], pending, _callback(request), network)
        if person.organization_id is not None:
            await _require_organization(console, person)
    except NoRole as exc:
        # Ends sessions that began when the user still had a role.
        assert sessions.sign_in_credential is not None
        await sessions.end_all(sessions.sign_in_credential, exc.subject)
        _log.warning("a person without a role was refused", subject=exc.subject)
        raise
    except PermissionDenied:
        console.wrong_codes.count(network)
        raise
    return person


async def _require_organization(console: Console, person: Person) -> None:
    assert person.organization_id is not None
    try:
        await console.services.organizations.organization_show(person.organization_id)
    except NotFound:
        raise NoRole(person.subject) from None


async def _begin_session(
    request: Request, response: Response, person: Person, credential: bytes
) -> None:
    console = whole_console(request)
    cookie = await console.sessions.begin(person, credential, request.scope["session"])
    response.set_cookie(
        COOKIE, cookie, max_age=SESSION_S, httponly=True, samesite="strict", secure=console.secure
    )


async def sign_out(request: Request) -> Response:
    console, session = whole_console(request), request.scope["session"]
    try:
        form = await checked_form(request)
    except TollkeeperError:
        return RedirectResponse("/", 303)
    if form.text("everywhere", default=""):
        with acting_as(Actor(ActorKind.CONSOLE, session.actor)):
            await console.sessions.end_all(session.credential, session.person.subject)
    else:
        await console.sessions.end(session)
    response = RedirectResponse(f"/sign-in?notice={_SIGNED_OUT}", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=console.secure)
    return response


def _refused(request: Request, next_page: str, wait_s: int) -> Response:
    """Answers a wrong token. After too many wrong tokens, the page says how long to wait."""
    if not wait_s:
        page = _page(request, next_page, "This is not the operator token.")
        page.status_code = 403
        return page
    page = _page(request, next_page, f"Too many wrong tokens. Try again in {wait_s} seconds.")
    page.status_code = 429
    page.headers["Retry-After"] = str(wait_s)
    return page


def _problem(request: Request, next_page: str, exc: TollkeeperError) -> Response:
    _log.warning("a sign-in failed", reason=exc.message)
    page = _page(request, next_page, exc.message)
    page.status_code = status_of(exc)
    if exc.retry_after_s is not None:
        page.headers["Retry-After"] = str(exc.retry_after_s)
    return page


def _page(request: Request, next_page: str, problem: str, notice: str = "") -> Response:
    has_provider = whole_console(request).provider is not None
    return render_outside(
        "sign_in.html",
        next=next_page,
        problem=problem,
        notice=notice,
        has_provider=has_provider,
        request_id=request.scope["request_id"],
    )


def _callback(request: Request) -> str:
    """Returns the URL to which the provider redirects the browser. The URL has the host name by
    which the browser reached the console. The guard has checked that this name is allowed."""
    return str(request.url.replace(path="/sign-in/callback", query=""))


def _own_address(text: str) -> str:
    """Returns the address if it is a path in this console; otherwise returns the path of the first
    page."""
    return text if _ADDRESS.fullmatch(text) else "/"
