"""Defines which roles may use each route and action of the console."""

import re
from dataclasses import dataclass
from functools import lru_cache

from starlette.routing import Match, Route

from tollkeeper.domain.errors import NotFound, PermissionDenied
from tollkeeper.domain.people import Person, Role


@dataclass(frozen=True, slots=True)
class Access:
    # The minimum role: viewer, operator or owner.
    minimum: Role
    # Whether users with the role `organization` may use the route too. `own_services.py` restricts
    # them to their own organization.
    organization: bool = False

    def allows(self, role: Role) -> bool:
        if role is Role.ORGANIZATION:
            return self.organization
        return role.rank >= self.minimum.rank


# The names that end with `_OWN` also allow the role `organization`.
_READ = Access(Role.VIEWER)
_READ_OWN = Access(Role.VIEWER, organization=True)
_WORK = Access(Role.OPERATOR)
_WORK_OWN = Access(Role.OPERATOR, organization=True)
# For most irreversible changes, for new admin keys, and for the list of signed-in users.
_OWNER = Access(Role.OWNER)
_OWNER_OWN = Access(Role.OWNER, organization=True)

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
# The required role for each route. A route with {action} has one entry for each action.
PERMISSIONS = {
    "POST /sign-out": _READ_OWN,
    "GET /": _READ,
    "POST /verify": _WORK,
    "GET /organizations": _READ,
    "POST /organizations": _WORK,
    "GET /organizations/{organization}": _READ_OWN,
    "GET /organizations/{organization}/statement": _READ_OWN,
    "GET /organizations/{organization}/statement.csv": _READ_OWN,
    # Users of an organization may not do this, because the API for organizations cannot create
    # Admin API keys either.
    "POST /organizations/{organization}/admin-keys": _OWNER,
    "POST /organizations/{organization}/admin-keys/{key}": _OWNER_OWN,
    "POST /organizations/{organization}/admin-keys/{key}/rename": _WORK,
    "POST /organizations/{organization}/rename": _WORK,
    "POST /organizations/{organization}/archive": _OWNER,
    "POST /organizations/{organization}/grant-credit": _WORK,
    "POST /organizations/{organization}/set-cap": _WORK,
    "POST /organizations/{organization}/clear-cap": _WORK,
    "POST /organizations/{organization}/set-overage": _WORK,
    "POST /organizations/{organization}/clear-overage": _WORK,
    "POST /organizations/{organization}/grant-check": _WORK,
    "POST /organizations/{organization}/revoke-check": _WORK,
    "GET /projects": _READ_OWN,
    "POST /projects": _WORK,
    "GET /projects/{project}": _READ_OWN,
    "POST /projects/{project}/archive": _OWNER_OWN,
    "POST /projects/{project}/rename": _WORK,
    "POST /projects/{project}/set-cap": _WORK,
    "POST /projects/{project}/clear-cap": _WORK,
    "POST /projects/{project}/allow-models": _WORK,
    "POST /projects/{project}/set-limits": _WORK,
    "GET /keys": _READ_OWN,
    "POST /keys": _WORK_OWN,
    "POST /keys/{key}/rotate": _WORK,
    "POST /keys/{key}/suspend": _WORK,
    "POST /keys/{key}/unsuspend": _WORK,
    "POST /keys/{key}/revoke": _OWNER,
    "POST /keys/{key}/rename": _WORK,
    "POST /keys/{key}/allow-models": _WORK,
    "POST /keys/{key}/set-cap": _WORK,
    "POST /keys/{key}/clear-cap": _WORK,
    "GET /costs": _READ_OWN,
    "GET /costs.csv": _READ_OWN,
    "GET /costs/all": _READ,
    "GET /budgets": _READ,
    "GET /payments": _READ,
    "POST /payments/assign": _WORK,
    "GET /start": _WORK,
    "POST /start": _WORK,
    "GET /playground": _WORK,
    "POST /playground": _WORK,
    "GET /activity": _READ,
    "GET /activity/export": _READ,
    "GET /activity/tail": _READ,
    "GET /activity/{request_id}": _READ,
    "GET /alerts": _READ,
    "GET /unsettled": _READ,
    "POST /unsettled/recover": _WORK,
    "POST /unsettled/all": _OWNER,
    # Resolving a call cannot be undone. Still, the role `operator` suffices, because an operator
    # can correct a wrong amount by granting or withdrawing credit.
    "POST /unsettled/{reservation}": _WORK,
    "GET /policies": _READ_OWN,
    "POST /policies": _WORK_OWN,
    "GET /policies/try": _READ,
    # A trial changes nothing, but the calls to the judge cost money.
    "POST /policies/try": _WORK,
    "POST /policies/try/save": _WORK,
    "GET /policies/{policy}": _READ_OWN,
    "POST /policies/{policy}/edit": _WORK_OWN,
    "POST /policies/{policy}/set-threshold": _WORK_OWN,
    "POST /policies/{policy}/pause": _WORK_OWN,
    # Users of an organization may not do this, because the API for organizations cannot publish,
    # resume or calibrate policies either.
    "POST /policies/{policy}/publish": _WORK,
    "POST /policies/{policy}/resume": _WORK,
    "POST /policies/{policy}/calibrate": _WORK,
    "GET /models": _READ,
    "GET /backends": _READ,
    "GET /backends/{backend}/try": _READ,
    "POST /backends/{backend}/try": _WORK,
    "GET /doctor": _READ,
    "POST /doctor": _WORK,
    "GET /months": _READ,
    "GET /months/{month}.csv.gz": _READ,
    "POST /months/close": _OWNER,
    "POST /months/{month}/exported": _OWNER,
    "POST /months/{month}/drop": _OWNER,
    "GET /reconcile": _READ,
    "POST /reconcile": _WORK,
    "GET /settings": _READ,
    "GET /audit": _READ,
    "GET /people": _OWNER,
    "POST /people/end": _OWNER,
}


def access_to(method: str, route: str, action: str | None) -> Access | None:
    """Returns the roles that may use a route. Returns None if `PERMISSIONS` has no entry for the
    route; no user may use such a route."""
    method = "GET" if method == "HEAD" else method
    path = route if action is None else route.replace("{action}", action)
    return PERMISSIONS.get(f"{method} {path}")


def require(person: Person, method: str, route: str, action: str | None) -> None:
    """Raises PermissionDenied if the user's role does not allow the request, and NotFound if
    `PERMISSIONS` has no entry for the route and action."""
    access = access_to(method, route, action)
    if access is None:
        raise NotFound("There is no such page.")
    if not access.allows(person.role):
        raise PermissionDenied(f"Your role ({person.role}) does not allow this.")


class Offers:
    """Decides which links and forms a page offers to a user."""

    def __init__(self, routes: list[Route]) -> None:
        self._routes = routes
        self._access = lru_cache(maxsize=1000)(self._find)

    def may(self, person: Person, method: str, address: str) -> bool:
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
                return access_to(method, route.path, action)
        return None
