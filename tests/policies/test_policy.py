"""Tests every step of a policy (edit, publish, pause, resume) from every state, without a database."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.errors import InvalidRequest, RevisionConflict, StateConflict
from tollkeeper.policies.policy import (
    REVISION_MAX,
    Mode,
    Policy,
    PolicyState,
    Rule,
    Scope,
    check_revision,
    check_rule,
    edited,
    paused,
    published,
    resumed,
)

_A, _B = (ProjectId(UUID(int=number)) for number in (1, 2))
_DRAFT = Policy(
    id="pol_1",
    organization_id=OrganizationId(UUID(int=0)),
    name="n",
    description="",
    state=PolicyState.DRAFT,
    revision=1,
    created_at=100,
    updated_at=100,
    draft=Rule(rule="Is it?", mode=Mode.ENFORCING),
    base_version=0,
    published=None,
)


def _edit(policy: Policy, **changes: object) -> Policy:
    return edited(policy, now=200, name=None, description=None, changes=changes)


def _publish(policy: Policy) -> Policy:
    return published(policy, version_id="polv_1", now=300)


_PUBLISHED = _publish(_DRAFT)
_PAUSED = paused(_PUBLISHED, now=400)


def test_publication() -> None:
    assert _PUBLISHED.state is PolicyState.ENFORCING
    assert (_PUBLISHED.revision, _PUBLISHED.base_version, _PUBLISHED.updated_at) == (2, 1, 300)
    assert _PUBLISHED.published is not None
    assert _PUBLISHED.published.rule == _DRAFT.draft
    assert not _PUBLISHED.has_unpublished_changes
    assert _DRAFT.has_unpublished_changes


def test_state_after_publication_is_the_drafts_mode() -> None:
    for mode in Mode:
        found = _publish(_edit(_DRAFT, mode=mode))
        assert found.state == mode.value


def test_edit_leaves_state_and_snapshot() -> None:
    for policy in (_DRAFT, _PUBLISHED, _PAUSED):
        found = _edit(policy, rule="Other?", mode=Mode.MONITORING)
        assert (found.state, found.published) == (policy.state, policy.published)
        assert (found.revision, found.updated_at) == (policy.revision + 1, 200)
        assert found.has_unpublished_changes
        assert found.base_version == policy.base_version


def test_edit_of_name_and_description_only() -> None:
    found = edited(_PUBLISHED, now=200, name=None, description="d", changes={})
    assert (found.description, found.has_unpublished_changes) == ("d", False)
    found = edited(_PUBLISHED, now=200, name="new", description=None, changes={})
    assert (found.name, found.draft, found.published) == (
        *("new", _PUBLISHED.draft),
        _PUBLISHED.published,
    )
    assert found.has_unpublished_changes


def test_pause_and_resume() -> None:
    assert _PAUSED.state is PolicyState.PAUSED
    assert _PAUSED.published == _PUBLISHED.published
    back = resumed(_edit(_PAUSED, mode=Mode.MONITORING), now=500)
    assert back.state is PolicyState.ENFORCING, "the published mode, not the draft's"
    assert back.revision == _PAUSED.revision + 2


def test_steps_that_a_state_forbids() -> None:
    for policy in (_DRAFT, _PAUSED):
        with pytest.raises(StateConflict):
            paused(policy, now=1)
    for policy in (_DRAFT, _PUBLISHED):
        with pytest.raises(StateConflict):
            resumed(policy, now=1)
    with pytest.raises(StateConflict, match="no unpublished changes"):
        _publish(_PUBLISHED)


def test_paused_policy_may_be_published_unchanged() -> None:
    again = _publish(_PAUSED)
    assert again.state is PolicyState.ENFORCING
    assert again.published is not None
    assert again.published.version == 2


def test_scope_of_projects_needs_projects_to_be_published() -> None:
    nowhere = _edit(_DRAFT, scope=Scope.PROJECTS)
    with pytest.raises(StateConflict, match="names no project"):
        _publish(nowhere)
    assert _publish(_edit(nowhere, project_ids=(_A,))).published is not None


def test_projects_are_kept_once_each() -> None:
    assert _edit(_DRAFT, project_ids=(_B, _A, _B)).draft.project_ids == (_B, _A)


@each("rule", ["", "Is it", "Is it? ", "Is it\uff1f", "Is it?\n"])
def test_rule_that_is_no_question(rule: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_rule(Rule(rule=rule))
    assert refused.value.param == "rule"
    with pytest.raises(InvalidRequest):
        _edit(_DRAFT, rule=rule)


@given(st.integers(min_value=1, max_value=REVISION_MAX))
def test_only_the_current_revision_is_taken(revision: int) -> None:
    policy = replace(_DRAFT, revision=7)
    if revision == 7:
        check_revision(policy, revision)
    else:
        with pytest.raises(RevisionConflict):
            check_revision(policy, revision)


def test_last_revision_ends_the_life_of_edits() -> None:
    policy = replace(_DRAFT, revision=REVISION_MAX)
    with pytest.raises(StateConflict):
        check_revision(policy, REVISION_MAX)


_STEPS = {
    "edit": lambda policy, number: _edit(policy, rule=f"{number}?"),
    "publish": lambda policy, number: _publish(policy),
    "pause": lambda policy, number: paused(policy, now=number),
    "resume": lambda policy, number: resumed(policy, now=number),
}


@given(st.lists(st.sampled_from(sorted(_STEPS)), max_size=30))
def test_any_history_keeps_the_invariants(steps: list[str]) -> None:
    policy, accepted, versions = _DRAFT, 0, 0
    for number, step in enumerate(steps):
        try:
            policy = _STEPS[step](policy, number)
        except StateConflict:
            continue
        accepted += 1
        versions += step == "publish"
        assert policy.revision == 1 + accepted
        assert (policy.state is PolicyState.DRAFT) == (policy.published is None)
        assert (policy.published.version if policy.published else 0) == versions
        assert policy.base_version == versions
