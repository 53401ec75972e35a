"""The administration's policies, keys, projects and costs."""

from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, UnsetType

from tollkeeper.core.conventions import (
    ADMIN_KEY_PAGE_DEFAULT,
    ADMIN_KEY_PAGE_MAX,
    COST_PAGE_DEFAULT,
    COST_PAGE_MAX,
    PROJECT_KEY_NAME_LENGTH_MAX,
)
from tollkeeper.core.reports import TIME_MAX, CostDimension
from tollkeeper.http.wire_base import ResponseObject, StrictRequestObject, UnixTime
from tollkeeper.policies.policy import Direction, Mode, PolicyState, Scope
from tollkeeper.policies.trial.rule import THRESHOLD_MAX, THRESHOLD_MIN

# PostgreSQL can't store U+0000, so `strict_json.decode_body` rejects it. This is for OpenAPI.
_STORABLE = {"pattern": r"^[^\x00]*$"}

PolicyName = Annotated[str, Meta(min_length=1, max_length=80, extra_json_schema=_STORABLE)]
PolicyDescription = Annotated[str, Meta(max_length=240, extra_json_schema=_STORABLE)]
PolicyRule = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=20000,
        extra_json_schema={"pattern": r"^[^\x00]*\?$"},
    ),
]
Threshold = Annotated[int, Meta(ge=THRESHOLD_MIN, le=THRESHOLD_MAX)]
Revision = Annotated[int, Meta(ge=1, le=2147483647)]
ProjectIds = Annotated[list[str], Meta(max_length=1000)]


class PolicyCreate(StrictRequestObject):
    name: PolicyName
    rule: PolicyRule
    description: PolicyDescription = ""
    direction: Direction = Direction.BOTH
    mode: Mode = Mode.MONITORING
    scope: Scope = Scope.ORGANIZATION
    project_ids: ProjectIds = []
    match_threshold_basis_points: Threshold | None = None


class PolicyEdit(StrictRequestObject):
    revision: Revision
    name: PolicyName | UnsetType = UNSET
    description: PolicyDescription | UnsetType = UNSET
    rule: PolicyRule | UnsetType = UNSET
    direction: Direction | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET
    project_ids: ProjectIds | UnsetType = UNSET
    # Null restores the default, and an omitted field leaves the threshold unchanged.
    match_threshold_basis_points: Threshold | UnsetType | None = UNSET


class PolicyPause(StrictRequestObject):
    revision: Revision


class PolicyDraft(ResponseObject):
    rule: str
    direction: Direction
    mode: Mode
    scope: Scope
    project_ids: list[str]
    match_threshold_basis_points: int | None
    base_version: int


class PublishedPolicy(ResponseObject):
    object: Literal["organization.policy.version"]
    id: str
    version: int
    direction: Direction
    mode: Mode
    scope: Scope
    project_ids: list[str]
    published_at: UnixTime
    current: bool
    rule: str
    match_threshold_basis_points: int


class Policy(ResponseObject):
    object: Literal["organization.policy"]
    id: str
    name: str
    description: str
    state: PolicyState
    revision: int
    has_unpublished_changes: bool
    created_at: UnixTime
    updated_at: UnixTime
    draft: PolicyDraft
    current_version: int | None
    published: PublishedPolicy | None


class EffectivePolicy(ResponseObject):
    object: Literal["organization.effective_policy"]
    id: str
    name: str
    version: int
    direction: Direction
    mode: Mode
    scope: Scope
    source: str


class EffectivePolicyList(ResponseObject):
    object: Literal["list"]
    data: list[EffectivePolicy]


class ProjectKeyCreate(StrictRequestObject):
    name: Annotated[
        str,
        Meta(min_length=1, max_length=PROJECT_KEY_NAME_LENGTH_MAX, extra_json_schema=_STORABLE),
    ]


class ProjectKeyOwner(ResponseObject):
    id: UUID
    type: Literal["project"]
    name: str


class ProjectKey(ResponseObject):
    object: Literal["organization.project.api_key"]
    id: UUID
    name: str
    redacted_value: str
    created_at: UnixTime
    last_used_at: UnixTime | None
    expires_at: UnixTime | None
    owner: ProjectKeyOwner
    status: Literal["active", "revoked", "expired", "suspended"]
    permissions: list[str]
    # The full key, only in the answer to its creation, and to repetitions within 24 hours.
    value: str | UnsetType = UNSET


class AdminKeyOwner(ResponseObject):
    id: UUID
    type: Literal["organization"]


class AdminKey(ResponseObject):
    object: Literal["organization.admin_api_key"]
    id: UUID
    name: str
    redacted_value: str
    created_at: UnixTime
    last_used_at: UnixTime | None
    expires_at: UnixTime | None
    owner: AdminKeyOwner
    permissions: list[str]


class AdminKeyList(ResponseObject):
    object: Literal["list"]
    data: list[AdminKey]
    has_more: bool
    first_id: str | None
    last_id: str | None


class AdminKeyListQuery(StrictRequestObject):
    after: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    limit: Annotated[int, Meta(ge=1, le=ADMIN_KEY_PAGE_MAX)] = ADMIN_KEY_PAGE_DEFAULT
    order: Literal["asc", "desc"] = "asc"


class AdminKeyDeleted(ResponseObject):
    object: Literal["organization.admin_api_key.deleted"]
    id: UUID
    deleted: bool


class ProjectDeleted(ResponseObject):
    object: Literal["organization.project.deleted"]
    id: UUID
    deleted: bool


class CostQuery(StrictRequestObject):
    start_time: Annotated[int, Meta(ge=0, le=TIME_MAX)]
    end_time: Annotated[int, Meta(ge=0, le=TIME_MAX)] | None = None
    bucket_width: Literal["1d"] = "1d"
    project_ids: Annotated[list[str], Meta(max_length=100)] = []
    api_key_ids: Annotated[list[str], Meta(max_length=100)] = []
    group_by: Annotated[list[CostDimension], Meta(max_length=3)] = []
    limit: Annotated[int, Meta(ge=1, le=COST_PAGE_MAX)] = COST_PAGE_DEFAULT
    page: Annotated[str, Meta(min_length=1, max_length=500)] | None = None


class CostAmount(ResponseObject):
    value: str
    currency: Literal["usd"]


class CostResult(ResponseObject):
    object: Literal["organization.costs.result"]
    amount: CostAmount
    line_item: str | None
    project_id: str | None
    api_key_id: str | None


class CostBucket(ResponseObject):
    object: Literal["bucket"]
    start_time: UnixTime
    end_time: UnixTime
    results: list[CostResult]


class CostPage(ResponseObject):
    object: Literal["page"]
    data: list[CostBucket]
    has_more: bool
    next_page: str | None
