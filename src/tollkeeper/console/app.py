"""Builds the console's ASGI application: its routes and error pages."""

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from tollkeeper.console import payment_webhook, sign_in, static_files
from tollkeeper.console.changes import status_of
from tollkeeper.console.context import Console, session_of, whole_console
from tollkeeper.console.guard import BODY_BYTES_MAX, Guard
from tollkeeper.console.pages import (
    activity,
    admin_keys,
    alerts,
    audit,
    backends,
    budgets,
    call,
    checks,
    costs,
    keys,
    models,
    months,
    organizations,
    overview,
    payments,
    people,
    playground,
    policies,
    policy,
    policy_trial,
    projects,
    reconcile,
    settings,
    statements,
    unsettled,
)
from tollkeeper.console.permissions import PUBLIC, Permissions
from tollkeeper.console.rendering import render
from tollkeeper.console.sessions import Session
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import TollkeeperError

# The headings of error pages, by status.
_HEADINGS = {
    403: "Not allowed",
    404: "Not found",
    429: "Too many requests",
    500: "Something went wrong",
}
_OTHER_HEADING = "Not possible"
_log = structlog.get_logger("tollkeeper.console")


async def _healthy(_request: Request) -> Response:
    """Answers liveness probes. Does not check the database, because a restart of the console would
    not repair the database."""
    return PlainTextResponse("ok")


ROUTES = [
    Route("/healthz", _healthy),
    Route("/sign-in", sign_in.show_sign_in),
    Route("/sign-in", sign_in.sign_in, methods=["POST"]),
    Route("/sign-in/provider", sign_in.show_provider),
    Route("/sign-in/callback", sign_in.finish_sign_in),
    Route("/sign-out", sign_in.sign_out, methods=["POST"]),
    Route("/static/{name}", static_files.static_file),
    Route("/webhooks/stripe", payment_webhook.receive, methods=["POST"]),
    Route("/", overview.show),
    Route("/verify", overview.verify, methods=["POST"]),
    Route("/organizations", organizations.show_all),
    Route("/organizations", organizations.create, methods=["POST"]),
    Route("/organizations/{organization}", organizations.show),
    Route("/organizations/{organization}/statement", statements.show),
    Route("/organizations/{organization}/statement.csv", statements.download),
    Route("/organizations/{organization}/admin-keys", admin_keys.create, methods=["POST"]),
    Route("/organizations/{organization}/admin-keys/{key}", admin_keys.revoke, methods=["POST"]),
    Route(
        "/organizations/{organization}/admin-keys/{key}/rename", admin_keys.rename, methods=["POST"]
    ),
    Route("/organizations/{organization}/{action}", organizations.change, methods=["POST"]),
    Route("/projects", projects.show_all),
    Route("/projects", projects.create, methods=["POST"]),
    Route("/projects/{project}", projects.show),
    Route("/projects/{project}/{action}", projects.change, methods=["POST"]),
    Route("/start", playground.show_start),
    Route("/start", playground.start, methods=["POST"]),
    Route("/playground", playground.show),
    Route("/playground", playground.call, methods=["POST"]),
    Route("/keys", keys.show_all),
    Route("/keys", keys.create, methods=["POST"]),
    Route("/keys/{key}/rotate", keys.rotate, methods=["POST"]),
    Route("/keys/{key}/{action}", keys.change, methods=["POST"]),
    Route("/costs", costs.show),
    Route("/costs/all", costs.show_all),
    Route("/costs.csv", costs.download),
    Route("/budgets", budgets.show),
    Route("/payments", payments.show),
    Route("/payments/assign", payments.assign, methods=["POST"]),
    Route("/activity", activity.show),
    Route("/activity/export", activity.export),
    Route("/activity/tail", activity.tail),
    Route("/activity/{request_id}", call.show),
    Route("/alerts", alerts.show),
    Route("/unsettled", unsettled.show),
    Route("/unsettled/recover", unsettled.recover, methods=["POST"]),
    Route("/unsettled/all", unsettled.resolve_all, methods=["POST"]),
    Route("/unsettled/{reservation}", unsettled.resolve, methods=["POST"]),
    Route("/policies", policies.show_all),
    Route("/policies", policies.create, methods=["POST"]),
    Route("/policies/try", policy_trial.show),
    Route("/policies/try", policy_trial.run, methods=["POST"]),
    Route("/policies/try/save", policy_trial.save, methods=["POST"]),
    Route("/policies/{policy}", policy.show),
    Route("/policies/{policy}/{action}", policy.change, methods=["POST"]),
    Route("/models", models.show),
    Route("/backends", backends.show),
    Route("/backends/{backend}/try", checks.show_trial),
    Route("/backends/{backend}/try", checks.run_trial, methods=["POST"]),
    Route("/doctor", checks.show_doctor),
    Route("/doctor", checks.run_doctor, methods=["POST"]),
    Route("/months", months.show),
    Route("/months/close", months.close, methods=["POST"]),
    Route("/months/{month}.csv.gz", months.download),
    Route("/months/{month}/{action}", months.change, methods=["POST"]),
    Route("/reconcile", reconcile.show),
    Route("/reconcile", reconcile.compare, methods=["POST"]),
    Route("/settings", settings.show),
    Route("/audit", audit.show),
    Route("/people", people.show),
    Route("/people/end", people.end, methods=["POST"]),
]
PERMISSIONS = Permissions(
    ROUTES,
    {
        f"{path}/{{action}}": {name: action.access for name, action in actions}
        for path, actions in (
            ("/organizations/{organization}", organizations.ACTIONS.items()),
            ("/projects/{project}", projects.ACTIONS.items()),
            ("/keys/{key}", keys.ACTIONS.items()),
            ("/policies/{policy}", policy.ACTIONS.items()),
            ("/months/{month}", months.ACTIONS.items()),
        )
    },
)


def build_console(console: Console, hosts: frozenset[str]) -> Starlette:
    app = Starlette(
        routes=[_permitted(route) for route in ROUTES],
        middleware=[
            Middleware(Guard, sessions=console.sessions, hosts=hosts, secure=console.secure)
        ],
        exception_handlers={
            TollkeeperError: _refused,
            HTTPException: _no_such_page,
            Exception: _failed,
        },
    )
    app.state.console = console
    app.state.offers = PERMISSIONS
    return app


def _permitted(route: Route) -> Route:
    """Returns the route with a check of the user's permission, or unchanged if it is public. Users
    of an organization are redirected from the overview to their organization's page."""
    (method,) = set(route.methods or ()) - {"HEAD"}
    if f"{method} {route.path}" in PUBLIC:
        return route

    async def endpoint(request: Request) -> Response:
        person = session_of(request).person
        if route.path == "/" and person.organization_id is not None:
            return RedirectResponse(f"/organizations/{person.organization_id}", 303)
        PERMISSIONS.require(person, method, route.path, request.path_params.get("action"))
        # Signing out is always possible. It ends the session, so it cannot be repeated.
        if method == "POST" and route.path != "/sign-out" and person.organization_id is not None:
            _count_administration(request, person.organization_id)
        return await route.endpoint(request)  # type: ignore[no-any-return]

    return Route(route.path, endpoint, methods=[method])


def _count_administration(request: Request, organization_id: OrganizationId) -> None:
    """Counts a request towards the organization's administration rate, as the API does. Raises
    RateLimited if the rate is used up."""
    rate = whole_console(request).services.administration_rate
    rate.count_request(organization_id)
    # Without a length, the body may have any size up to the maximum.
    rate.count_body(organization_id, int(request.headers.get("content-length", BODY_BYTES_MAX)))


async def _refused(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, TollkeeperError)
    response = _problem(request, exc.message, status_of(exc))
    if exc.retry_after_s is not None:
        response.headers["Retry-After"] = str(exc.retry_after_s)
    return response


async def _no_such_page(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    text = "There is no such page." if exc.status_code == 404 else exc.detail
    return _problem(request, text, exc.status_code)


async def _failed(request: Request, exc: Exception) -> Response:
    _log.error("a page failed", path=request.url.path, exc_info=exc)
    return _problem(request, "The console failed. Its log contains the reason.", 500)


def _problem(request: Request, message: str, status: int) -> Response:
    request_id = request.scope["request_id"]
    _log.info("a page was refused", path=request.url.path, status=status, reason=message)
    if not isinstance(request.scope.get("session"), Session):
        return PlainTextResponse(f"{message} Request id: {request_id}", status)
    page = render(
        *(request, "problem.html"),
        nav="",
        title=_HEADINGS.get(status, _OTHER_HEADING),
        message=message,
        request_id=request_id,
    )
    page.status_code = status
    return page
