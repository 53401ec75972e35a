"""One organization's published policies at one epoch (a number that changes with them), and which apply to a
call."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.errors import NotFound
from tollkeeper.policies.calibration.rule import Calibration
from tollkeeper.policies.judge.rule import score_basis_points
from tollkeeper.policies.policy import (
    Direction,
    JudgeFormat,
    Mode,
    PolicyVersion,
    Scope,
    StoredCalibration,
)


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """Published and not paused."""

    id: str
    name: str
    version: int
    version_id: str
    rule: str
    direction: Direction
    mode: Mode
    scope: Scope
    project_ids: frozenset[ProjectId]
    threshold_basis_points: int
    # None: the score itself is compared with the threshold.
    calibration: Calibration | None = None

    def basis_points(self, score: float) -> int:
        """What is compared with the threshold."""
        if self.calibration is None:
            return score_basis_points(score)
        return self.calibration.basis_points(score)

    def judges(self, direction: Direction) -> bool:
        return self.direction in (direction, Direction.BOTH)

    def enforces(self, direction: Direction) -> bool:
        return self.mode is Mode.ENFORCING and self.judges(direction)

    def is_attached(self, project_id: ProjectId) -> bool:
        return self.scope is Scope.ORGANIZATION or (
            self.scope is Scope.PROJECTS and project_id in self.project_ids
        )


def policies_judging(policies: Iterable[ActivePolicy], direction: Direction) -> list[ActivePolicy]:
    """Calls no method of a policy, because a call may have a thousand."""
    directions = (direction, Direction.BOTH)
    return [policy for policy in policies if policy.direction in directions]


_Positioned: TypeAlias = tuple[int, ActivePolicy]


@dataclass(frozen=True, slots=True)
class PolicySet:
    """An index instead of a loop over all policies. A call keeps the set of its admission, even if policies
    are published meanwhile."""

    epoch: int
    active: dict[str, ActivePolicy]
    paused: frozenset[str]
    # Also of paused ones.
    versions: dict[str, PolicyVersion] = field(repr=False, compare=False, default_factory=dict)
    # Attached to the organization, and to each project.
    _of_organization: list[_Positioned] = field(
        init=False, repr=False, compare=False, default_factory=list
    )
    _of_projects: dict[ProjectId, list[_Positioned]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        for positioned in enumerate(self.active.values()):
            policy = positioned[1]
            if policy.scope is Scope.ORGANIZATION:
                self._of_organization.append(positioned)
            elif policy.scope is Scope.PROJECTS:
                for project_id in policy.project_ids:
                    self._of_projects.setdefault(project_id, []).append(positioned)

    @property
    def size(self) -> int:
        return len(self.active) + len(self.paused)

    def attached(self, project_id: ProjectId) -> list[ActivePolicy]:
        own = self._of_projects.get(project_id)
        positioned = (
            self._of_organization
            if own is None
            else sorted(self._of_organization + own, key=_position)
        )
        return [policy for _, policy in positioned]

    def applying(self, project_id: ProjectId, named: Sequence[str]) -> tuple[ActivePolicy, ...]:
        """Attached or named, each once. Raises NotFound if a named one isn't published or is paused."""
        by_id = {policy.id: policy for policy in self.attached(project_id)}
        for position, policy_id in enumerate(named):
            by_id[policy_id] = self.find(policy_id, param=f"policy_ids[{position}]")
        return tuple(by_id.values())

    def find(self, policy_id: str, *, param: str) -> ActivePolicy:
        policy = self.active.get(policy_id)
        if policy is not None:
            return policy
        if policy_id in self.paused:
            raise NotFound(f"The policy {policy_id} is paused.", param=param)
        raise NotFound(f"There is no published policy {policy_id[:120]!r}.", param=param)


def _position(positioned: _Positioned) -> int:
    return positioned[0]


NO_POLICIES = PolicySet(epoch=0, active={}, paused=frozenset())


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """Without its draft."""

    organization_id: OrganizationId
    id: str
    is_paused: bool
    version: PolicyVersion
    # Activated by an operator.
    calibration: StoredCalibration | None


def policy_set(
    epoch: int,
    policies: Sequence[PublishedPolicy],
    default_threshold: int,
    judge: JudgeFormat | None = None,
) -> PolicySet:
    """Calibrations for another judge or rule aren't used."""
    active: dict[str, ActivePolicy] = {}
    paused: set[str] = set()
    for policy in policies:
        if policy.is_paused:
            paused.add(policy.id)
        else:
            active[policy.id] = _active_policy(policy, default_threshold, judge)
    versions = {policy.version.id: policy.version for policy in policies}
    return PolicySet(epoch, active, frozenset(paused), versions)


def _active_policy(
    policy: PublishedPolicy, default_threshold: int, judge: JudgeFormat | None
) -> ActivePolicy:
    version, rule = policy.version, policy.version.rule
    stored = policy.calibration
    fits = stored is not None and stored.applies_to(rule.rule, judge)
    return ActivePolicy(
        id=policy.id,
        name=version.name,
        version=version.version,
        version_id=version.id,
        rule=rule.rule,
        direction=rule.direction,
        mode=rule.mode,
        scope=rule.scope,
        project_ids=frozenset(rule.project_ids),
        threshold_basis_points=rule.match_threshold_basis_points or default_threshold,
        calibration=stored.calibration if stored is not None and fits else None,
    )
