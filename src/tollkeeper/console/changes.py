"""The one way by which a page changes something: the form is checked, the change is made by its
service, and the browser is sent to a page that shows it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tollkeeper.console.context import console_of, session_of
from tollkeeper.console.forms import Form, read_form
from tollkeeper.domain.audit import Actor, ActorKind
from tollkeeper.domain.errors import (
    InvalidRequest,
    PermissionDenied,
    StateConflict,
    TollkeeperError,
)
from tollkeeper.services.audit import acting_as

T = TypeVar("T")
_log = structlog.get_logger("tollkeeper.console")


@dataclass(frozen=True, slots=True)
class Change:
    """What is changed: the name of the operation, and the id of what it is applied to."""

    operation: str
    subject: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a change was not made, and what the form held, to be corrected."""

    error: TollkeeperError
    filled: Mapping[str, str]


async def checked_form(request: Request) -> Form:
    """The form, if it comes from a page of this session and was not sent before."""
    form = await read_form(request)
    sessions = console_of(request).sessions
    if not sessions.form_is_ours(session_of(request), form.text("form_token", default="")):
        raise PermissionDenied("This form is not from a page of this session: load the page again.")
    if sessions.sent_before(form.text("once", default="")):
        raise StateConflict("This form was sent before; nothing was changed a second time.")
    return form


async def make_change(request: Request, change: Change, operation: Callable[[], Awaitable[T]]) -> T:
    """Every change of the console passes here. The service records it in the audit, as a change of
    the session that makes it."""
    with acting_as(Actor(ActorKind.CONSOLE, session_of(request).name)):
        result = await operation()
    _log.info("changed by the console", operation=change.operation, subject=change.subject)
    return result


async def answer_form(
    request: Request,
    handle: Callable[[Form], Awaitable[Response]],
    *,
    on_refusal: Callable[[Refused], Awaitable[Response]],
) -> Response:
    """Lets `handle` make the change; where it is refused, the page is shown again with the reason
    and with what was filled in."""
    filled: Mapping[str, str] = {}
    try:
        form = await checked_form(request)
        filled = form.filled
        return await handle(form)
    except TollkeeperError as exc:
        response = await on_refusal(Refused(exc, filled))
        response.status_code = 400 if isinstance(exc, InvalidRequest) else 409
        return response
    finally:
        # A file that was sent with the form is a temporary file here.
        await request.close()


def done(address: str, notice: str) -> Response:
    """Sends the browser on, so that loading the page again repeats nothing."""
    mark = "&" if "?" in address else "?"
    return RedirectResponse(f"{address}{mark}notice={notice}", 303)
