"""The endpoints for policies."""

from typing import Any

import msgspec
from msgspec import UNSET

from tollkeeper.core.access import ProjectId
from tollkeeper.core.conventions import EFFECTIVE_POLICY_SOURCE
from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.organization import ids
from tollkeeper.faces.organization.idempotency import idempotent_request
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import organization as wire
from tollkeeper.policies.policies import OPERATION_CREATE
from tollkeeper.policies.policy import Policy, PolicyVersion, Rule
from tollkeeper.policies.policy_set import ActivePolicy

_RULE_FIELDS = ("rule", "direction", "mode", "scope", "match_threshold_basis_points")


async def policy_create(
    services: ApiServices, request: Request[wire.PolicyCreate, None]
) -> wire.Policy:
    body = request.body
    draft = Rule(
        project_ids=_project_ids(body.project_ids),
        **{field: getattr(body, field) for field in _RULE_FIELDS},
    )
    # The same projects in upper case, or one of them twice, create the same policy.
    projects = [str(project) for project in dict.fromkeys(draft.project_ids)]
    content = msgspec.structs.replace(body, project_ids=projects)
    policy = await services.policies.policy_create(
        body.name, body.description, draft, idempotent_request(request, OPERATION_CREATE, content)
    )
    return policy_view(policy, services.default_threshold)


async def policy_show(services: ApiServices, request: Request[None, None]) -> wire.Policy:
    policy = await services.policies.policy_show(
        request.admin_caller.organization_id, ids.policy_id(request.path["policy_id"])
    )
    return policy_view(policy, services.default_threshold)


async def policy_edit(
    services: ApiServices, request: Request[wire.PolicyEdit, None]
) -> wire.Policy:
    body = request.body
    changes: dict[str, Any] = {
        field: getattr(body, field) for field in _RULE_FIELDS if getattr(body, field) is not UNSET
    }
    if body.project_ids is not UNSET:
        changes["project_ids"] = _project_ids(body.project_ids)
    policy = await services.policies.policy_edit(
        request.admin_caller.organization_id,
        ids.policy_id(request.path["policy_id"]),
        body.revision,
        name=None if body.name is UNSET else body.name,
        description=None if body.description is UNSET else body.description,
        changes=changes,
    )
    return policy_view(policy, services.default_threshold)


async def policy_pause(
    services: ApiServices, request: Request[wire.PolicyPause, None]
) -> wire.Policy:
    policy = await services.policies.policy_pause(
        request.admin_caller.organization_id,
        ids.policy_id(request.path["policy_id"]),
        request.body.revision,
    )
    return policy_view(policy, services.default_threshold)


async def effective_policy_list(
    services: ApiServices, request: Request[None, None]
) -> wire.EffectivePolicyList:
    effective = await services.policies.effective_policy_list(
        request.admin_caller.organization_id, ids.project_id(request.path["project_id"])
    )
    return wire.EffectivePolicyList(
        object="list", data=[_effective_view(policy) for policy in effective]
    )


def policy_view(policy: Policy, default_threshold: int) -> wire.Policy:
    published = policy.published
    return wire.Policy(
        object="organization.policy",
        id=policy.id,
        name=policy.name,
        description=policy.description,
        state=policy.state,
        revision=policy.revision,
        has_unpublished_changes=policy.has_unpublished_changes,
        created_at=policy.created_at,
        updated_at=policy.updated_at,
        draft=wire.PolicyDraft(
            rule=policy.draft.rule,
            direction=policy.draft.direction,
            mode=policy.draft.mode,
            scope=policy.draft.scope,
            project_ids=[str(project) for project in policy.draft.project_ids],
            match_threshold_basis_points=policy.draft.match_threshold_basis_points,
            base_version=policy.base_version,
        ),
        current_version=None if published is None else published.version,
        published=None if published is None else _published_view(published, default_threshold),
    )


def _published_view(version: PolicyVersion, default_threshold: int) -> wire.PublishedPolicy:
    rule = version.rule
    return wire.PublishedPolicy(
        object="organization.policy.version",
        id=version.id,
        version=version.version,
        direction=rule.direction,
        mode=rule.mode,
        scope=rule.scope,
        project_ids=[str(project) for project in rule.project_ids],
        published_at=version.published_at,
        current=True,
        rule=rule.rule,
        match_threshold_basis_points=rule.match_threshold_basis_points or default_threshold,
    )


def _effective_view(policy: ActivePolicy) -> wire.EffectivePolicy:
    return wire.EffectivePolicy(
        object="organization.effective_policy",
        id=policy.id,
        name=policy.name,
        version=policy.version,
        direction=policy.direction,
        mode=policy.mode,
        scope=policy.scope,
        source=EFFECTIVE_POLICY_SOURCE,
    )


def _project_ids(texts: list[str]) -> tuple[ProjectId, ...]:
    return tuple(
        ids.project_id(text, param=f"project_ids[{position}]")
        for position, text in enumerate(texts)
    )
