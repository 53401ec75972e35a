"""Defines the authorization matrix: the interface's rule for each route, and the test cases (cells).

The rows are written by hand from the interface. The routes are those of the route table. A route
without a row has no cells, and `test_tidy` fails.
"""

from dataclasses import dataclass

from tollkeeper.core.access import KeyKind, Permission
from tollkeeper.faces.endpoint import AnyEndpoint
from tollkeeper.faces.routes import ROUTES

_ORGANIZATION = "/v1/organization"

# Maps method and path to the kind of key and the permission that the interface requires.
ROWS: dict[tuple[str, str], tuple[KeyKind, str]] = {
    ("POST", "/v1/chat/completions"): (KeyKind.PROJECT, "inference:write"),
    ("POST", "/v1/responses"): (KeyKind.PROJECT, "inference:write"),
    ("POST", "/v1/messages/count_tokens"): (KeyKind.PROJECT, "inference:write"),
    ("GET", "/v1/models/{model}"): (KeyKind.PROJECT, "models:read"),
    # Extensions of the interface, which an operator can switch on.
    ("GET", "/v1/models"): (KeyKind.PROJECT, "models:read"),
    ("GET", "/v1/key/usage"): (KeyKind.PROJECT, "inference:write"),
    ("POST", "/v1/messages"): (KeyKind.PROJECT, "inference:write"),
    ("POST", f"{_ORGANIZATION}/policies"): (KeyKind.ADMIN, "policies:write"),
    ("GET", f"{_ORGANIZATION}/policies/{{policy_id}}"): (KeyKind.ADMIN, "policies:read"),
    ("PATCH", f"{_ORGANIZATION}/policies/{{policy_id}}"): (KeyKind.ADMIN, "policies:write"),
    ("POST", f"{_ORGANIZATION}/policies/{{policy_id}}/pause"): (KeyKind.ADMIN, "policies:write"),
    ("GET", f"{_ORGANIZATION}/projects/{{project_id}}/effective_policies"): (
        KeyKind.ADMIN,
        "policies:read",
    ),
    ("POST", f"{_ORGANIZATION}/projects/{{project_id}}/api_keys"): (
        KeyKind.ADMIN,
        "project_api_keys:create",
    ),
    ("POST", f"{_ORGANIZATION}/projects/{{project_id}}/archive"): (
        KeyKind.ADMIN,
        "projects:create",
    ),
    ("GET", f"{_ORGANIZATION}/admin_api_keys"): (KeyKind.ADMIN, "admin_api_keys:read"),
    ("DELETE", f"{_ORGANIZATION}/admin_api_keys/{{api_key_id}}"): (
        KeyKind.ADMIN,
        "admin_api_keys:revoke",
    ),
    ("GET", f"{_ORGANIZATION}/costs"): (KeyKind.ADMIN, "billing:read"),
}

# Ids that do not exist, so that no cell changes anything.
_PATH_VALUES = {
    "policy_id": "pol_00000000000000000000000000000000",
    "project_id": "00000000-0000-4000-8000-000000000000",
    "api_key_id": "00000000-0000-4000-8000-000000000000",
    "model": "example%2Fchat-small",
}

# Sets of permissions that a key may have: none, each single permission, and all.
PROFILES: dict[str, tuple[str, ...]] = {
    "none": (),
    **{permission.value: (permission.value,) for permission in Permission},
    "all": tuple(permission.value for permission in Permission),
}


@dataclass(frozen=True)
class Cell:
    """One request of the matrix. `allowed` says whether it must pass authorization."""

    endpoint: AnyEndpoint
    key_kind: KeyKind
    profile: str
    allowed: bool

    @property
    def id(self) -> str:
        return f"{self.endpoint.operation}-{self.key_kind}-{self.profile}"


def path_of(endpoint: AnyEndpoint) -> str:
    return endpoint.path.format(**_PATH_VALUES)


def cells() -> list[Cell]:
    found = []
    for endpoint in ROUTES:
        row = ROWS.get((endpoint.method, endpoint.path))
        if row is None:
            continue  # test_every_route_has_its_row reports this route.
        kind, permission = row
        found += [
            Cell(endpoint, key_kind, profile, key_kind is kind and permission in held)
            for key_kind in KeyKind
            for profile, held in PROFILES.items()
        ]
    return found
