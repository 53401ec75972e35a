"""Policies, and how they're edited, published, paused and resumed. Every change names the current revision. A
published version never changes."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.errors import InvalidRequest, RevisionConflict, StateConflict
from tollkeeper.policies.calibration.rule import Calibration


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
    # Only for requests that name it.
    UNATTACHED = "unattached"


# PostgreSQL's largest `integer`.
REVISION_MAX = 2147483647


@dataclass(frozen=True, slots=True)
class Rule:
    """The question, the calls it applies to, and the action. A draft's can be edited; each version has a
    copy."""

    rule: str
    # The interface doesn't say what omitted fields mean. These judge requests and answers, deny nothing, and
    # apply to every project.
    direction: Direction = Direction.BOTH
    mode: Mode = Mode.MONITORING
    scope: Scope = Scope.ORGANIZATION
    project_ids: tuple[ProjectId, ...] = ()
    match_threshold_basis_points: int | None = None


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    id: str
    version: int
    # At publication. Errors and lists of policies in effect show it.
    name: str
    rule: Rule
    published_at: int


@dataclass(frozen=True, slots=True)
class JudgeFormat:
    """The judge's model and the format of its prompt. Scores compare only if both are equal."""

    model: str
    prompt_format: str


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """Of one judge's scores for one rule."""

    number: int
    judge: JudgeFormat
    rule: str
    calibration: Calibration
    created_at: int
    # Measured when it was fitted.
    report: dict[str, Any]

    def applies_to(self, rule: str, judge: JudgeFormat | None) -> bool:
        return self.judge == judge and self.rule == rule


@dataclass(frozen=True, slots=True)
class Policy:
    id: str
    organization_id: OrganizationId
    # The draft's; it takes effect with the next publication.
    name: str
    description: str
    state: PolicyState
    revision: int
    created_at: int
    updated_at: int
    draft: Rule
    # 0 before the first publication.
    base_version: int
    published: PolicyVersion | None
    # Activated by an operator.
    calibration: StoredCalibration | None = None

    @property
    def current_rule(self) -> Rule:
        """The draft's if nothing is published."""
        return self.draft if self.published is None else self.published.rule

    @property
    def has_unpublished_changes(self) -> bool:
        version = self.published
        return version is None or (version.name, version.rule) != (self.name, self.draft)


def check_rule(rule: Rule) -> None:
    """What the types of the request can't express. Raises InvalidRequest."""
    if not rule.rule.endswith("?"):
        raise InvalidRequest("A rule is a yes-or-no question and ends with '?'.", param="rule")


def each_project_once(rule: Rule) -> Rule:
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
    """The published version doesn't change."""
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
    """The draft becomes the next version, and its mode the state."""
    if policy.draft.scope is Scope.PROJECTS and not policy.draft.project_ids:
        raise StateConflict("The draft's scope is 'projects', but it names no project.")
    if not policy.has_unpublished_changes and policy.state is not PolicyState.PAUSED:
        raise StateConflict("The draft has no unpublished changes.")
    number = 1 if policy.published is None else policy.published.version + 1
    version = PolicyVersion(version_id, number, policy.name, policy.draft, published_at=now)
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
