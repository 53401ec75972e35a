"""The one way by which a page changes something: the form is checked, the operator confirms what cannot
be undone or moves money, the change is made by its service, and the browser is sent to a page that
shows it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import urlencode

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tollkeeper.console.context import console_of, session_of
from tollkeeper.console.forms import Form, Refused, read_form
from tollkeeper.console.notices import notice_mark
from tollkeeper.console.rendering import render
from tollkeeper.domain.audit import Actor, ActorKind
from tollkeeper.domain.errors import (
    InvalidRequest,
    NotFound,
    PermissionDenied,
    StateConflict,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.services.audit import acting_as
from tollkeeper.services.use_cases import Services

T = TypeVar("T")
_STATUS: tuple[tuple[type[TollkeeperError], int], ...] = (
    (NotFound, 404),
    (InvalidRequest, 400),
    (PermissionDenied, 403),
    (Unavailable, 503),
)
_log = structlog.get_logger("tollkeeper.console")


def status_of(error: TollkeeperError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 409)


# Shows a page, again with the reason if a form on it was refused.
Page = Callable[[Request, Refused | None], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Question:
    """What an operator confirms before a change: its amount and its consequence."""

    title: str
    consequence: str
    # What the button says that makes the change.
    button: str
    facts: Mapping[str, object] = field(default_factory=dict)
    # Fields that the confirmed form has beside those of the first one.
    carried: Mapping[str, str] = field(default_factory=dict)


# The name of what the page says afterwards, and the amount that it names.
Notice: TypeAlias = tuple[str, int]
Ask = Callable[[Form], Awaitable[Question | None]]


@dataclass(frozen=True, slots=True)
class Action(Generic[T]):
    """What a button of a page does: calls a use case with the fields of the form."""

    # The name of what the page says afterwards; with an amount, it depends on the result.
    notice: str | Callable[[Any], Notice]
    work: Callable[[Services, T, Form], Awaitable[Any]]
    # Returns what is to be confirmed; None if the change needs no confirmation.
    ask: Callable[[Services, T, Form], Awaitable[Question | None]] | None = None


async def checked_form(request: Request) -> Form:
    """Return the form, if it comes from a page of this session and was not sent before."""
    form = await _own_form(request)
    _require_first(request, form)
    return form


async def _own_form(request: Request) -> Form:
    form = await read_form(request)
    sessions = console_of(request).sessions
    if not sessions.form_is_ours(session_of(request), form.text("form_token", default="")):
        raise PermissionDenied("This form is not from a page of this session: load the page again.")
    return form


def _require_first(request: Request, form: Form) -> None:
    if console_of(request).sessions.sent_before(form.text("once", default="")):
        raise StateConflict("This form was sent before; nothing was changed a second time.")


async def act(
    request: Request, actions: Mapping[str, Action[T]], subject: T, address: str, page: Page
) -> Response:
    """Lets the action that the address names change the subject."""
    action = actions.get(request.path_params["action"])
    if action is None:
        raise NotFound("There is no such page.")

    services = console_of(request).services

    async def ask(form: Form) -> Question | None:
        return None if action.ask is None else await action.ask(services, subject, form)

    async def handle(form: Form) -> Response:
        result = await action.work(services, subject, form)
        if isinstance(action.notice, str):
            return done(request, address, action.notice)
        return done(request, address, *action.notice(result))

    return await answer_form(request, handle, page, ask=ask, back=address)


async def answer_form(
    request: Request,
    handle: Callable[[Form], Awaitable[Response]],
    page: Page,
    *,
    ask: Ask | None = None,
    back: str = "/",
) -> Response:
    """Let `handle` make the change, which the audit records as one of this session. If `ask` returns a
    question, a page asks it first, from which `back` leads away. If the change is refused, the page is
    shown again with the reason and with the fields as they were filled in."""
    filled: Mapping[str, str] = {}
    try:
        form = await _own_form(request)
        filled = form.filled
        # A form that is still to be confirmed does not count as sent.
        if ask is not None and not form.text("confirmed", default=""):
            question = await ask(form)
            if question is not None:
                return _confirmation(request, question, form, back)
            # The script only wants to know whether there is a question.
            if form.text("asking", default=""):
                return Response(status_code=204)
        _require_first(request, form)
        with acting_as(Actor(ActorKind.CONSOLE, session_of(request).actor)):
            response = await handle(form)
        _log.info("the console has processed a form", path=request.url.path)
    except TollkeeperError as exc:
        response = await page(request, Refused(exc, filled))
        response.status_code = status_of(exc)
    finally:
        # A file that was sent with the form is a temporary file here.
        await request.close()
    return response


def _confirmation(request: Request, question: Question, form: Form, back: str) -> Response:
    own = ("form_token", "once", "asking", *question.carried)
    kept = [(name, value) for name, value in form.text_items() if name not in own]
    return render(
        request,
        "confirm.html",
        nav="",
        title=question.title,
        question=question,
        fields=[*kept, *question.carried.items()],
        back=back,
    )


def done(request: Request, address: str, notice: str, amount: int | None = None) -> Response:
    """Send the browser on, so that loading the page again repeats nothing."""
    said: dict[str, object] = {"notice": notice}
    if amount is not None:
        secret = console_of(request).sessions.form_token(session_of(request))
        said |= {"amount": amount, "mark": notice_mark(secret, notice, str(amount))}
    return RedirectResponse(f"{address}{'&' if '?' in address else '?'}{urlencode(said)}", 303)
