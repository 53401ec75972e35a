"""Signing in with the operator token, and out."""

import re

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tollkeeper.console.changes import checked_form
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import read_form
from tollkeeper.console.notices import NOTICES
from tollkeeper.console.rendering import render_outside
from tollkeeper.console.sessions import COOKIE, SESSION_S
from tollkeeper.domain.errors import TollkeeperError

_ADDRESS = re.compile(r"/(?![/\\])[^\s\\]{0,2000}")


async def show_sign_in(request: Request) -> Response:
    wanted = _own_address(request.query_params.get("next", "/"))
    if request.scope["session"] is not None:
        return RedirectResponse(wanted, 303)
    return _page(wanted, "", NOTICES.get(request.query_params.get("notice", ""), ""))


async def sign_in(request: Request) -> Response:
    console = console_of(request)
    address = "unknown" if request.client is None else request.client.host
    form = await read_form(request)
    wanted = _own_address(form.text("next", default="/"))
    if not console.sessions.token_is_right(form.text("token", default="")):
        return _refused(wanted, console.attempts.was_wrong(address))
    response = RedirectResponse(wanted, 303)
    response.set_cookie(
        COOKIE,
        console.sessions.begin(),
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=console.secure,
    )
    return response


async def sign_out(request: Request) -> Response:
    console = console_of(request)
    try:
        await checked_form(request)
    except TollkeeperError:
        return RedirectResponse("/", 303)
    await console.sessions.end(request.scope["session"])
    response = RedirectResponse("/sign-in?notice=signed-out", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=console.secure)
    return response


def _refused(wanted: str, wait_s: int) -> Response:
    """The answer to a wrong token, which says more where there were too many of them."""
    if not wait_s:
        page = _page(wanted, "This is not the operator token.")
        page.status_code = 403
        return page
    page = _page(wanted, f"Too many wrong tokens. Try again in {wait_s} seconds.")
    page.status_code = 429
    page.headers["Retry-After"] = str(wait_s)
    return page


def _page(wanted: str, problem: str, notice: str = "") -> Response:
    return render_outside("sign_in.html", next=wanted, problem=problem, notice=notice)


def _own_address(text: str) -> str:
    """An address of this console; anything else is the first page."""
    return text if _ADDRESS.fullmatch(text) else "/"
