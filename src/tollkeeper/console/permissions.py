"""Defines which roles may use each route of the console. Actions declare their roles themselves."""

import re
from collections.abc import Mapping
from functools import lru_cache

from starlette.routing import Match, Route

from tollkeeper.actions.action import OWNER, OWNER_OWN, READ, READ_OWN, WORK, WORK_OWN, Access
from tollkeeper.actions.project_keys import PROJECT_KEY_CREATE
from tollkeeper.core.errors import NotFound, PermissionDenied
from tollkeeper.tenants.people import Person

# Routes that need no session.
PUBLIC = frozenset(
    {
        "GET /sign-in",
        "POST /sign-in",
        "GET /sign-in/provider",
        "GET /sign-in/callback",
        "GET /static/{name}",
        "GET /healthz",
        # Stripe signs its events instead of having a session.
        "POST /webhooks/stripe",
    }
)
# The required role for each route without {action}.
PERMISSIONS = {
    "POST /sign-out": READ_OWN,
    "GET /": READ,
    "POST /verify": WORK,
    "GET /organizations": READ,
    "POST /organizations": WORK,
    "GET /organizations/{organization}": READ_OWN,
    "GET /organizations/{organization}/statement": READ_OWN,
    "GET /organizations/{organization}/statement.csv": READ_OWN,
    # Users of an organization may not do this, because the API for organizations cannot create
    # Admin API keys either.
    "POST /organizations/{organization}/admin-keys": OWNER,
    "POST /organizations/{organization}/admin-keys/{key}": OWNER_OWN,
    "POST /organizations/{organization}/admin-keys/{key}/rename": WORK,
    "GET /projects": READ_OWN,
    "POST /projects": WORK,
    "GET /projects/{project}": READ_OWN,
    "GET /keys": READ_OWN,
    "POST /keys": PROJECT_KEY_CREATE.access,
    "POST /keys/{key}/rotate": WORK,
    "GET /costs": READ_OWN,
    "GET /costs.csv": READ_OWN,
    "GET /costs/all": READ,
    "GET /budgets": READ,
    "GET /payments": READ,
    "POST /payments/assign": WORK,
    "GET /start": WORK,
    "POST /start": WORK,
    "GET /playground": WORK,
    "POST /playground": WORK,
    "GET /activity": READ,
    "GET /activity/export": READ,
    "GET /activity/tail": READ,
    "GET /activity/{request_id}": READ,
    "GET /alerts": READ,
    "GET /unsettled": READ,
    "POST /unsettled/recover": WORK,
    "POST /unsettled/all": OWNER,
    # Resolving a call cannot be undone. Still, the role `operator` suffices, because an operator
    # can correct a wrong amount by granting or withdrawing credit.
    "POST /unsettled/{reservation}": WORK,
    "GET /policies": READ_OWN,
    "POST /policies": WORK_OWN,
    "GET /policies/try": READ,
    # A trial changes nothing, but the calls to the judge cost money.
    "POST /policies/try": WORK,
    "POST /policies/try/save": WORK,
    "GET /policies/{policy}": READ_OWN,
    "GET /models": READ,
    "GET /backends": READ,
    "GET /backends/{backend}/try": READ,
    "POST /backends/{backend}/try": WORK,
    "GET /doctor": READ,
    "POST /doctor": WORK,
    "GET /months": READ,
    "GET /months/{month}.csv.gz": READ,
    "POST /months/close": OWNER,
    "GET /reconcile": READ,
    "POST /reconcile": WORK,
    "GET /settings": READ,
    "GET /audit": READ,
    "GET /people": OWNER,
    "POST /people/end": OWNER,
}


class Permissions:
    def __init__(self, routes: list[Route], actions: Mapping[str, Mapping[str, Access]]) -> None:
        """`actions` has the actions of each route with {action}."""
        self._routes = routes
        # The required role for each route and action. No user may use a route without an entry.
        self.table = PERMISSIONS | {
            f"POST {path.replace('{action}', name)}": access
            for path, accesses in actions.items()
            for name, access in accesses.items()
        }
        self._access = lru_cache(maxsize=1000)(self._find)

    def access_to(self, method: str, route: str, action: str | None) -> Access | None:
        method = "GET" if method == "HEAD" else method
        path = route if action is None else route.replace("{action}", action)
        return self.table.get(f"{method} {path}")

    def require(self, person: Person, method: str, route: str, action: str | None) -> None:
        """Raises PermissionDenied if the user's role does not allow the request, and NotFound if there
        is no such route and action."""
        access = self.access_to(method, route, action)
        if access is None:
            raise NotFound("There is no such page.")
        if not access.allows(person.role):
            raise PermissionDenied(f"Your role ({person.role}) does not allow this.")

    def may(self, person: Person, method: str, address: str) -> bool:
        """Decides whether a page offers a link or a form to a user."""
        path = re.split(r"[?#]", address)[0]
        # Replaces each part that contains a digit (an id or a month) by `x`, so that addresses with
        # different ids share one cache entry. The permission does not depend on the id.
        access = self._access(method, re.sub(r"/[^/.]*\d[^/.]*", "/x", path))
        return access is not None and access.allows(person.role)

    def _find(self, method: str, path: str) -> Access | None:
        scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                action = found["path_params"].get("action")
                return self.access_to(method, route.path, action)
        return None
