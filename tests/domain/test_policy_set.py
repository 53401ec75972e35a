"""Tests the maximum number of verdicts that a call can wait for, which its hold must cover."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.domain.access import ProjectId
from tollkeeper.domain.policy import Direction, Mode, Scope
from tollkeeper.domain.policy_set import ActivePolicy, PolicySet

_PROJECTS = [ProjectId(UUID(int=number)) for number in range(3)]
_NAMES = [f"pol_{number}" for number in range(6)]


@st.composite
def _policies(draw: st.DrawFn) -> PolicySet:
    active = {
        name: ActivePolicy(
            id=name,
            name=name,
            version=1,
            version_id=f"{name}_1",
            rule="Is it?",
            direction=draw(st.sampled_from(Direction)),
            mode=draw(st.sampled_from(Mode)),
            scope=draw(st.sampled_from(Scope)),
            project_ids=draw(st.frozensets(st.sampled_from(_PROJECTS))),
            threshold_basis_points=5000,
        )
        for name in draw(st.lists(st.sampled_from(_NAMES), unique=True))
    }
    return PolicySet(1, active, frozenset())


@given(_policies(), st.sampled_from(_PROJECTS), st.lists(st.sampled_from(_NAMES)))
def test_as_many_verdicts_are_held_for_as_a_call_can_wait_for(
    policies: PolicySet, project_id: ProjectId, named: list[str]
) -> None:
    known = [name for name in named if name in policies.active]
    expected = sum(
        policy.enforces(direction)
        for policy in policies.applying(project_id, known)
        for direction in (Direction.REQUEST, Direction.RESPONSE)
    )
    # `verdicts_max` ignores an unknown name, because `applying` refuses the call.
    assert policies.verdicts_max(project_id, named) == expected
