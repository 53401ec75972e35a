"""Defines policies and the rules for editing, publishing, pausing and resuming them.

Every change names the policy's current revision; a published version never changes.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tollkeeper.domain.access import OrganizationId, ProjectId
from tollkeeper.domain.calibration import Calibration
from tollkeeper.domain.errors import InvalidRequest, RevisionConflict, StateConflict


class PolicyState(StrEnum):
    DRAFT = "draft"
    MONITORING = "monitoring"
    ENFORCING = "enforcing"
    PAUSED = "paused"


class Direction(StrEnum):
    REQUEST = "request"
    RESPONSE = "response"
    BOTH = "both"


class Mode(StrEnum):
    MONITORING = "monitoring"
    ENFORCING = "enforcing"


class Scope(StrEnum):
    ORGANIZATION = "organization"
    PROJECTS = "projects"
    UNATTACHED = "unattached"


REVISION_MAX = 2147483647


@dataclass(frozen=True, slots=True)
class Rule:
    """Defines what is judged and where. A draft has an editable rule; a version has a copy."""

    rule: str
    # The interface does not define omitted fields. Our defaults judge both sides, deny nothing and
    # apply to every project.
    direction: Direction = Direction.BOTH
    mode: Mode = Mode.MONITORING
    scope: Scope = Scope.ORGANIZATION
    project_ids: tuple[ProjectId, ...] = ()
    match_threshold_basis_points: int | None = None


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """Represents an immutable published version."""

    id: str
    version: int
    rule: Rule
    published_at: int


@dataclass(frozen=True, slots=True)
class JudgeFormat:
    """Identifies what a score depends on apart from the rule and the text."""

    model: str
    prompt_format: str


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """Stores a calibration of one rule by one judge."""

    number: int
    judge: JudgeFormat
    rule: str
    calibration: Calibration
    created_at: int
    # The measurements from when it was fitted.
    report: dict[str, Any]

    def applies_to(self, rule: str, judge: JudgeFormat | None) -> bool:
        return self.judge == judge and self.rule == rule


@dataclass(frozen=True, slots=True)
class Policy:
    id: str
    organization_id: OrganizationId
    name: str
    description: str
    state: PolicyState
    revision: int
    created_at: int
    updated_at: int
    draft: Rule
    # The version that the draft started from; 0 before the first publication.
    base_version: int
    published: PolicyVersion | None
    # The calibration that an operator has activated.
    calibration: StoredCalibration | None = None

    @property
    def has_unpublished_changes(self) -> bool:
        return self.published is None or self.published.rule != self.draft


def check_rule(rule: Rule) -> None:
    """Checks rules that the wire types cannot express."""
    if not rule.rule.endswith("?"):
        raise InvalidRequest("A rule is a yes-or-no question and ends with '?'.", param="rule")


def each_project_once(rule: Rule) -> Rule:
    """Removes repeated projects, in the given order."""
    return replace(rule, project_ids=tuple(dict.fromkeys(rule.project_ids)))


def check_revision(policy: Policy, revision: int) -> None:
    if revision != policy.revision:
        raise RevisionConflict(
            f"The policy is at revision {policy.revision}, not {revision}: read it again.",
            param="revision",
        )
    if policy.revision >= REVISION_MAX:
        raise StateConflict("The policy has reached its last revision.", param="revision")


def edited(
    policy: Policy, *, now: int, name: str | None, description: str | None, changes: dict[str, Any]
) -> Policy:
    """Returns the policy after an edit of its draft. The published version does not change."""
    draft = each_project_once(replace(policy.draft, **changes))
    check_rule(draft)
    return replace(
        policy,
        name=policy.name if name is None else name,
        description=policy.description if description is None else description,
        draft=draft,
        revision=policy.revision + 1,
        updated_at=now,
    )


def published(policy: Policy, *, version_id: str, now: int) -> Policy:
    """Returns the policy after publication: the version number is one higher, and the state is the
    draft's mode."""
    if policy.draft.scope is Scope.PROJECTS and not policy.draft.project_ids:
        raise StateConflict("The draft's scope is 'projects', but it names no project.")
    if not policy.has_unpublished_changes and policy.state is not PolicyState.PAUSED:
        raise StateConflict("The draft has no unpublished changes.")
    number = 1 if policy.published is None else policy.published.version + 1
    version = PolicyVersion(id=version_id, version=number, rule=policy.draft, published_at=now)
    return replace(
        policy,
        state=PolicyState(policy.draft.mode),
        published=version,
        base_version=number,
        revision=policy.revision + 1,
        updated_at=now,
    )


def paused(policy: Policy, *, now: int) -> Policy:
    if policy.published is None:
        raise StateConflict("A policy that was never published cannot be paused.")
    if policy.state is PolicyState.PAUSED:
        raise StateConflict("The policy is already paused.")
    return replace(policy, state=PolicyState.PAUSED, revision=policy.revision + 1, updated_at=now)


def resumed(policy: Policy, *, now: int) -> Policy:
    if policy.state is not PolicyState.PAUSED or policy.published is None:
        raise StateConflict("Only a paused policy can be resumed.")
    state = PolicyState(policy.published.rule.mode)
    return replace(policy, state=state, revision=policy.revision + 1, updated_at=now)
