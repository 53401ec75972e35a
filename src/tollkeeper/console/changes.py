"""The one way by which a page changes something: the form is checked, the change is made by its
service, and the browser is sent to a page that shows it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tollkeeper.console.context import console_of, session_of
from tollkeeper.console.forms import Form, read_form
from tollkeeper.domain.audit import Actor, ActorKind
from tollkeeper.domain.errors import (
    InvalidRequest,
    NotFound,
    PermissionDenied,
    StateConflict,
    TollkeeperError,
)
from tollkeeper.services.audit import acting_as
from tollkeeper.services.use_cases import Services

T = TypeVar("T")
_log = structlog.get_logger("tollkeeper.console")


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a change was not made, and what the form held, to be corrected."""

    error: TollkeeperError
    filled: Mapping[str, str]


# Shows a page, again with the reason if a form on it was refused.
Page = Callable[[Request, Refused | None], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Action(Generic[T]):
    """What a button of a page does: calls a use case with the fields of the form."""

    # The name of what the page says afterwards.
    notice: str
    work: Callable[[Services, T, Form], Awaitable[Any]]


async def checked_form(request: Request) -> Form:
    """The form, if it comes from a page of this session and was not sent before."""
    form = await read_form(request)
    sessions = console_of(request).sessions
    if not sessions.form_is_ours(session_of(request), form.text("form_token", default="")):
        raise PermissionDenied("This form is not from a page of this session: load the page again.")
    if sessions.sent_before(form.text("once", default="")):
        raise StateConflict("This form was sent before; nothing was changed a second time.")
    return form


async def act(
    request: Request, actions: Mapping[str, Action[T]], subject: T, address: str, page: Page
) -> Response:
    """Lets the action that the address names change the subject."""
    action = actions.get(request.path_params["action"])
    if action is None:
        raise NotFound("There is no such page.")

    async def handle(form: Form) -> Response:
        await action.work(console_of(request).services, subject, form)
        return done(address, action.notice)

    return await answer_form(request, handle, page)


async def answer_form(
    request: Request, handle: Callable[[Form], Awaitable[Response]], page: Page
) -> Response:
    """Lets `handle` make the change, which the audit records as one of this session. If the change is
    refused, the page is shown again with the reason and with the fields as they were filled in."""
    filled: Mapping[str, str] = {}
    try:
        form = await checked_form(request)
        filled = form.filled
        with acting_as(Actor(ActorKind.CONSOLE, session_of(request).name)):
            response = await handle(form)
        _log.info("the console has processed a form", path=request.url.path)
    except TollkeeperError as exc:
        response = await page(request, Refused(exc, filled))
        response.status_code = 400 if isinstance(exc, InvalidRequest) else 409
    finally:
        # A file that was sent with the form is a temporary file here.
        await request.close()
    return response


def done(address: str, notice: str) -> Response:
    """Sends the browser on, so that loading the page again repeats nothing."""
    mark = "&" if "?" in address else "?"
    return RedirectResponse(f"{address}{mark}notice={notice}", 303)
