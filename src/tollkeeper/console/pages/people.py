"""Lists signed-in users with their roles, and ends all sessions of a user."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.action import Question
from tollkeeper.console.changes import answer_form, done
from tollkeeper.console.context import console_of, session_of
from tollkeeper.console.forms import Form, Refused
from tollkeeper.console.rendering import render
from tollkeeper.console.session_store import StoredSession
from tollkeeper.core.errors import NotFound

_SHOWN_MAX = 1000


async def show(request: Request, refused: Refused | None = None) -> Response:
    console = console_of(request)
    organizations = await console.services.organizations.organization_list()
    return render(
        request,
        "people.html",
        nav="people",
        title="People",
        refused=refused,
        sessions=await console.sessions.list(limit=_SHOWN_MAX),
        own=session_of(request).digest,
        organizations={found.id: found.name for found in organizations},
    )


async def end(request: Request) -> Response:
    sessions = console_of(request).sessions

    async def find(form: Form) -> StoredSession:
        digest = form.text("session")
        for found in await sessions.list(limit=_SHOWN_MAX):
            if found.digest.hex() == digest:
                return found
        raise NotFound("This session has ended already.")

    async def ask(form: Form) -> Question:
        name = (await find(form)).person.name
        return Question(
            f"End all sessions of {name}?",
            "The person is signed out in every browser, and can sign in again.",
            "End all sessions",
        )

    async def handle(form: Form) -> Response:
        session = await find(form)
        await sessions.end_all(session.credential, session.person.subject)
        return done(request, "/people", "All sessions of this person have ended.")

    return await answer_form(request, handle, show, ask=ask, back="/people")
