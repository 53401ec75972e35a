"""Processes every form that makes a change.

Checks the form, asks the user to confirm an important change (for example an irreversible change),
calls the service, and redirects the browser to a page that shows the result.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar
from urllib.parse import urlencode

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tollkeeper.actions.action import Access, Action, Prepared, Question
from tollkeeper.actions.own_services import AnyServices
from tollkeeper.console.context import console_of, services_of, session_of, whole_console
from tollkeeper.console.forms import Form, Refused, read_form
from tollkeeper.console.rendering import render, signed_notice
from tollkeeper.core.errors import (
    InvalidRequest,
    NotFound,
    PermissionDenied,
    RateLimited,
    StateConflict,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.setup.services import Services
from tollkeeper.tenants.audit.rule import Actor, ActorKind
from tollkeeper.tenants.audit.service import acting_as

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_STATUS: tuple[tuple[type[TollkeeperError], int], ...] = (
    (NotFound, 404),
    (InvalidRequest, 400),
    (PermissionDenied, 403),
    (RateLimited, 429),
    (Unavailable, 503),
)
_FOREIGN = "This form is not from a page of this session: load the page again."
_log = structlog.get_logger("tollkeeper.console")


def status_of(error: TollkeeperError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 409)


# Shows a page. If one of its forms was rejected, the second argument contains the reason.
Page = Callable[[Request, Refused | None], Awaitable[Response]]


Ask = Callable[[Form], Awaitable[Question | None]]


@dataclass(frozen=True, slots=True)
class FormAction(Generic[T]):
    """Describes the change that a button of a page makes."""

    access: Access
    # What the next page says, or a function that computes it from the result of `work`.
    notice: str | Callable[[Any], str]
    work: Callable[[Services, T, Form], Awaitable[Any]]
    # Returns the question for the confirmation page, or None if the change needs no confirmation.
    ask: Callable[[Services, T, Form], Awaitable[Question | None]] | None = None

    def __post_init__(self) -> None:
        assert self.access.organization == isinstance(self, OwnFormAction)


@dataclass(frozen=True, slots=True)
class OwnFormAction(FormAction[T]):
    """Is an action that an organization's users may use, too."""

    work: Callable[[AnyServices, T, Form], Awaitable[Any]]
    ask: Callable[[AnyServices, T, Form], Awaitable[Question | None]] | None = None


def form_of(
    action: Action[Services, P, R], prepare: Callable[[T, Form], Prepared[Services, R]]
) -> FormAction[T]:
    """`prepare` reads the action's arguments from the form."""
    return FormAction(
        action.access,
        action.notice,
        lambda services, subject, form: prepare(subject, form).run(services),
        None
        if action.ask is None
        else lambda services, subject, form: prepare(subject, form).ask(services),
    )


async def checked_form(request: Request) -> Form:
    """Reads the form and records it as sent. Raises PermissionDenied if the form does not come from
    a page of this session, and StateConflict if it was sent before."""
    form = await _form_of_session(request)
    _require_not_sent_before(request, form)
    return form


async def _form_of_session(request: Request) -> Form:
    sessions, session = whole_console(request).sessions, session_of(request)
    # A body without the token isn't even decoded.
    if sessions.form_token(session).encode() not in await request.body():
        raise PermissionDenied(_FOREIGN)
    form = await read_form(request)
    if not sessions.form_token_is_right(session, form.text("form_token", default="")):
        raise PermissionDenied(_FOREIGN)
    return form


def _require_not_sent_before(request: Request, form: Form) -> None:
    if whole_console(request).sessions.was_sent_before(form.text("once", default="")):
        raise StateConflict("This form was sent before; nothing was changed a second time.")


async def act(
    request: Request, actions: Mapping[str, FormAction[T]], subject: T, address: str, page: Page
) -> Response:
    """Runs the action that the request's path names. `subject` is the object to change. After the
    change, redirects to `address`; `page` and the confirmation are as in `answer_form`."""
    action = actions.get(request.path_params["action"])
    if action is None:
        raise NotFound("There is no such page.")

    async def ask(form: Form) -> Question | None:
        if isinstance(action, OwnFormAction):
            own_ask, services = action.ask, services_of(request)
            return None if own_ask is None else await own_ask(services, subject, form)
        return (
            None
            if action.ask is None
            else await action.ask(console_of(request).services, subject, form)
        )

    async def handle(form: Form) -> Response:
        if isinstance(action, OwnFormAction):
            result = await action.work(services_of(request), subject, form)
        else:
            result = await action.work(console_of(request).services, subject, form)
        notice = action.notice
        return done(request, address, notice if isinstance(notice, str) else notice(result))

    return await answer_form(request, handle, page, ask=ask, back=address)


async def answer_form(
    request: Request,
    handle: Callable[[Form], Awaitable[Response]],
    page: Page,
    *,
    ask: Ask | None = None,
    back: str = "/",
) -> Response:
    """Runs `handle`, with the session's user as the actor in the audit. If `ask` returns a question
    and the form is not confirmed yet, shows a confirmation page with a link to `back` instead. If
    the change is rejected, shows `page` again with the reason and the submitted fields."""
    filled: Mapping[str, str] = {}
    try:
        form = await _form_of_session(request)
        filled = form.filled
        # A form that still has to be confirmed is not recorded as sent, because the confirmation
        # sends it again.
        if ask is not None and not form.text("confirmed", default=""):
            question = await ask(form)
            if question is not None:
                return _confirmation(request, question, form, back)
            # console.js sends `asking` to find out whether the change needs a confirmation. The
            # change must not be made yet.
            if form.text("asking", default=""):
                return Response(status_code=204)
        _require_not_sent_before(request, form)
        with acting_as(Actor(ActorKind.CONSOLE, session_of(request).actor)):
            response = await handle(form)
        _log.info("the console has processed a form", path=request.url.path)
    except TollkeeperError as exc:
        response = await page(request, Refused(exc, filled))
        response.status_code = status_of(exc)
    finally:
        # Deletes the temporary files of uploads.
        await request.close()
    return response


def _confirmation(request: Request, question: Question, form: Form, back: str) -> Response:
    replaced = ("form_token", "once", "asking", *question.extra_fields)
    hidden_fields = [(name, value) for name, value in form.text_items() if name not in replaced]
    return render(
        request,
        "confirm.html",
        nav="",
        title=question.title,
        question=question,
        fields=[*hidden_fields, *question.extra_fields.items()],
        back=back,
    )


def done(request: Request, address: str, notice: str) -> Response:
    """Redirects the browser after a change, so that reloading the page does not repeat the change.
    The next page shows the notice."""
    secret = whole_console(request).sessions.form_token(session_of(request))
    query = urlencode(signed_notice(notice, secret))
    return RedirectResponse(f"{address}{'&' if '?' in address else '?'}{query}", 303)
