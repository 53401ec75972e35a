"""Creates a new organization with everything that a first call needs, and sends test calls from the
playground page.

The playground shows the answer, the hold (the amount reserved before the call) and the settlement
(the charge after the call).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from uuid import UUID

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tollkeeper.actions.action import Question
from tollkeeper.console.amounts import exact_usd
from tollkeeper.console.changes import answer_form
from tollkeeper.console.chosen import chosen_organization
from tollkeeper.console.context import Console, console_of
from tollkeeper.console.forms import Form, Refused, optional, project_id, request_id
from tollkeeper.console.gateway_call import Opened, call_gateway
from tollkeeper.console.pages.keys import created
from tollkeeper.console.rendering import fragment, render
from tollkeeper.core.access import ProjectId
from tollkeeper.core.errors import InvalidRequest, NotFound, TollkeeperError
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.core.views import CallLedger

# How long the playground's key of a project stays valid after a test call: more than twice the
# longest duration of a call.
_KEY_LIFETIME_S = 1200
# The longest time without data from the gateway, and the longest duration of a call.
_SILENCE_MAX_S = 60.0
_CALL_DEADLINE_S = 300.0
_PROMPT_LENGTH_MAX = 20_000
# The number of times that the page reads the ledger until the call is resolved, and the pause
# between two reads. Usually one read suffices, because a settlement is stored before the last byte
# of the answer is sent.
_LEDGER_READS_MAX, _LEDGER_PAUSE_S = 20, 0.25
# The comment in playground.html that is replaced by the hold, the answer and the settlement.
_ANSWER_MARKER = "<!-- the answer -->"


async def show_start(request: Request, refused: Refused | None = None) -> Response:
    return render(request, "start.html", nav="start", title="Get started", refused=refused)


async def start(request: Request) -> Response:
    """Creates an organization with credit, a project and a key."""

    async def ask(form: Form) -> Question:
        amount = exact_usd(_credit(form))
        return Question(
            f"Create {form.text('organization')} with {amount}?",
            "The organization can spend its credit at once.",
            f"Create and grant {amount}",
            facts={"Project": form.text("project"), "Key": form.text("key"), "Credit": amount},
        )

    async def handle(form: Form) -> Response:
        services = console_of(request).services
        amount, project_name, key_name = _credit(form), form.text("project"), form.text("key")
        # One transaction, so that a failure leaves nothing behind and the form can be sent again.
        async with services.database.transaction() as connection:
            organization = await services.organizations.organization_create(
                form.text("organization"), within=connection
            )
            project = await services.projects.project_create(
                organization.id, project_name, within=connection
            )
            await services.accounts.credit_grant(
                organization.id, amount, "first credit", within=connection
            )
            key, value = await services.project_keys.project_key_create_by_operator(
                project.id, key_name, None, None, within=connection
            )
        return created(request, key, value, granted_picousd=amount)

    return await answer_form(request, handle, show_start, ask=ask, back="/start")


def _credit(form: Form) -> int:
    amount = form.picousd("amount")
    if amount <= 0:
        raise InvalidRequest("The credit must be more than 0 USD.", param="amount")
    return amount


async def show(request: Request, refused: Refused | None = None) -> Response:
    services = console_of(request).services
    chosen = await chosen_organization(request)
    projects = []
    if chosen.organization is not None:
        found = await services.projects.project_list(chosen.organization.id)
        projects = [project for project in found if project.archived_at is None]
    return render(
        request,
        "playground.html",
        nav="playground",
        title="Playground",
        refused=refused,
        chosen=chosen,
        projects=projects,
        models=[model.id for model in services.catalog.catalog.models],
        project=optional(request.query_params, "project"),
        answering=False,
    )


async def call(request: Request) -> Response:
    """Streams the page: first the hold, then the answer, then the settlement."""

    async def handle(form: Form) -> Response:
        console = console_of(request)
        services = console.services
        prompt, model = form.text("prompt"), form.text("model")
        if len(prompt) > _PROMPT_LENGTH_MAX:
            raise InvalidRequest("The prompt is too long for the playground.", param="prompt")
        project = await services.projects.project_show(project_id(form.text("project")))
        console.require_stream()
        seed = partial(_key_seed, console.vault, project.id)
        value = await services.project_keys.project_key_of_playground(
            project.id, _KEY_LIFETIME_S, seed
        )
        page = render(
            request,
            "playground.html",
            nav="playground",
            title="Playground",
            filled=form.filled,
            chosen=await chosen_organization(request),
            projects=[project],
            models=[one.id for one in services.catalog.catalog.models],
            project=str(project.id),
            answering=True,
        )
        before, _, after = bytes(page.body).decode().partition(_ANSWER_MARKER)

        async def pieces() -> AsyncIterator[str]:
            yield before
            async with aclosing(_answer(request, value, model, prompt)) as answer:
                async for piece in answer:
                    yield piece
            yield after

        return StreamingResponse(console.stream(pieces(), _CALL_DEADLINE_S), media_type="text/html")

    return await answer_form(request, handle, show)


def _key_seed(vault: Vault, project: ProjectId, number: int) -> bytes:
    return vault.derive("console-playground", project.bytes, str(number).encode())


async def _answer(request: Request, key: str, model: str, prompt: str) -> AsyncGenerator[str, None]:
    console = console_of(request)
    opened: Opened | None = None
    try:
        calling = call_gateway(console.settings, key, model, prompt, timeout_s=_SILENCE_MAX_S)
        async with aclosing(calling) as events:
            async for event in events:
                if isinstance(event, Opened):
                    opened = event
                    ledger = await _ledger(console, event, wait_for_end=False)
                    yield fragment(request, "playground_hold.html", opened=event, ledger=ledger)
                else:
                    yield str(escape(event.text))
    except TollkeeperError as exc:
        yield fragment(request, "playground_hold.html", opened=None, problem=exc.message)
    # Closes the element that playground_hold.html opens.
    yield "</pre>"
    if opened is not None:
        ledger = await _ledger(console, opened, wait_for_end=True)
        yield fragment(request, "playground_settlement.html", opened=opened, ledger=ledger)


async def _ledger(console: Console, opened: Opened, *, wait_for_end: bool) -> CallLedger | None:
    """Waits until the ledger contains the call's hold, and returns the ledger's data about the
    call. With `wait_for_end`, waits until the hold is resolved or unsettled (the cost is unknown).
    Returns None if the call was rejected without a hold, or if the ledger has no hold in time."""
    identity: UUID = request_id(opened.request_id)
    ledger: CallLedger | None = None
    for _ in range(_LEDGER_READS_MAX):
        try:
            ledger = (await console.services.traffic.call_story(identity)).ledger
        except NotFound:
            ledger = None
        ended = ledger is not None and (ledger.resolution or ledger.mark)
        if (ledger and not wait_for_end) or ended or opened.status >= 400:
            break
        await asyncio.sleep(_LEDGER_PAUSE_S)
    return ledger
