"""The route table, one row per endpoint. The operator can enable each of `EXTENSION_ROUTES`."""

from dataclasses import replace

from tollkeeper.core.access import KeyKind, Permission
from tollkeeper.core.conventions import TOKEN_COUNT_ESTIMATED_HEADER, UNSETTLED_HEADER
from tollkeeper.faces import key_usage, models
from tollkeeper.faces.chat import handler as chat
from tollkeeper.faces.endpoint import AnyEndpoint, Endpoint, ResultHeader
from tollkeeper.faces.messages import handler as messages
from tollkeeper.faces.organization import costs, keys, policies
from tollkeeper.faces.organization.idempotency import IDEMPOTENCY_KEY
from tollkeeper.faces.request import SESSION_HEADER
from tollkeeper.faces.responses import handler as responses
from tollkeeper.faces.wire import chat as chat_wire
from tollkeeper.faces.wire import messages as messages_wire
from tollkeeper.faces.wire import models as models_wire
from tollkeeper.faces.wire import organization as wire
from tollkeeper.faces.wire import response_object
from tollkeeper.faces.wire import responses as responses_wire
from tollkeeper.faces.wire.key_usage import KeyUsage
from tollkeeper.http.conventions import HttpConventions
from tollkeeper.http.envelope import ErrorStyle

# Besides the common ones. The first is also for endpoints that write but can't conflict.
_NO_CONFLICT_ERRORS = frozenset({404})
_WRITE_ERRORS = frozenset({404, 409})

ORGANIZATION_ROUTES: tuple[AnyEndpoint, ...] = (
    Endpoint(
        operation="policy_create",
        method="POST",
        path="/v1/organization/policies",
        tag="Policies",
        summary="Create a policy draft",
        permission=Permission.POLICIES_WRITE,
        key_kind=KeyKind.ADMIN,
        handle=policies.policy_create,
        body=wire.PolicyCreate,
        result=wire.Policy,
        headers=(IDEMPOTENCY_KEY,),
        errors=_WRITE_ERRORS,
        stored=True,
    ),
    Endpoint(
        operation="policy_show",
        method="GET",
        path="/v1/organization/policies/{policy_id}",
        tag="Policies",
        summary="Read a policy",
        permission=Permission.POLICIES_READ,
        key_kind=KeyKind.ADMIN,
        handle=policies.policy_show,
        result=wire.Policy,
        errors=_NO_CONFLICT_ERRORS,
    ),
    Endpoint(
        operation="policy_edit",
        method="PATCH",
        path="/v1/organization/policies/{policy_id}",
        tag="Policies",
        summary="Edit a policy's draft",
        permission=Permission.POLICIES_WRITE,
        key_kind=KeyKind.ADMIN,
        handle=policies.policy_edit,
        body=wire.PolicyEdit,
        result=wire.Policy,
        errors=_WRITE_ERRORS,
        stored=True,
    ),
    Endpoint(
        operation="policy_pause",
        method="POST",
        path="/v1/organization/policies/{policy_id}/pause",
        tag="Policies",
        summary="Pause a published policy",
        permission=Permission.POLICIES_WRITE,
        key_kind=KeyKind.ADMIN,
        handle=policies.policy_pause,
        body=wire.PolicyPause,
        result=wire.Policy,
        errors=_WRITE_ERRORS,
    ),
    Endpoint(
        operation="effective_policy_list",
        method="GET",
        path="/v1/organization/projects/{project_id}/effective_policies",
        tag="Policies",
        summary="List the policies that apply to every call of a project",
        permission=Permission.POLICIES_READ,
        key_kind=KeyKind.ADMIN,
        handle=policies.effective_policy_list,
        result=wire.EffectivePolicyList,
        errors=_NO_CONFLICT_ERRORS,
    ),
    Endpoint(
        operation="project_key_create",
        method="POST",
        path="/v1/organization/projects/{project_id}/api_keys",
        tag="Project keys",
        summary="Create a project key",
        permission=Permission.PROJECT_API_KEYS_CREATE,
        key_kind=KeyKind.ADMIN,
        handle=keys.project_key_create,
        body=wire.ProjectKeyCreate,
        result=wire.ProjectKey,
        headers=(IDEMPOTENCY_KEY,),
        errors=_WRITE_ERRORS,
        stored=True,
    ),
    Endpoint(
        operation="project_archive",
        method="POST",
        path="/v1/organization/projects/{project_id}/archive",
        tag="Projects",
        summary="Archive a project",
        permission=Permission.PROJECTS_CREATE,
        key_kind=KeyKind.ADMIN,
        handle=keys.project_archive,
        result=wire.ProjectDeleted,
        errors=_NO_CONFLICT_ERRORS,
    ),
    Endpoint(
        operation="admin_key_list",
        method="GET",
        path="/v1/organization/admin_api_keys",
        tag="Admin keys",
        summary="List Admin API keys",
        permission=Permission.ADMIN_API_KEYS_READ,
        key_kind=KeyKind.ADMIN,
        handle=keys.admin_key_list,
        query=wire.AdminKeyListQuery,
        result=wire.AdminKeyList,
        errors=_NO_CONFLICT_ERRORS,
    ),
    Endpoint(
        operation="admin_key_revoke",
        method="DELETE",
        path="/v1/organization/admin_api_keys/{api_key_id}",
        tag="Admin keys",
        summary="Revoke an Admin API key",
        permission=Permission.ADMIN_API_KEYS_REVOKE,
        key_kind=KeyKind.ADMIN,
        handle=keys.admin_key_revoke,
        result=wire.AdminKeyDeleted,
        errors=_NO_CONFLICT_ERRORS,
    ),
    Endpoint(
        operation="cost_report",
        method="GET",
        path="/v1/organization/costs",
        tag="Reports",
        summary="Report daily costs",
        permission=Permission.BILLING_READ,
        key_kind=KeyKind.ADMIN,
        handle=costs.cost_report,
        query=wire.CostQuery,
        result=wire.CostPage,
        result_headers=(
            ResultHeader(
                UNSETTLED_HEADER,
                "The number of requests in the page's time range whose cost is not known yet.",
                {"type": "integer", "minimum": 0},
            ),
        ),
        errors=_NO_CONFLICT_ERRORS,
    ),
)

# Of chat, Responses and Messages, and of token counting.
_INFERENCE_ERRORS = frozenset({402, 404, 409, 422, 501, 502, 504})
_COUNT_ERRORS = frozenset({404, 501})

INFERENCE_ROUTES: tuple[AnyEndpoint, ...] = (
    Endpoint(
        operation="chat_create",
        method="POST",
        path="/v1/chat/completions",
        tag="Inference",
        summary="Generate a chat completion",
        permission=Permission.INFERENCE_WRITE,
        key_kind=KeyKind.PROJECT,
        handle=chat.chat_create,
        body=chat_wire.ChatRequest,
        result=chat_wire.ChatCompletion,
        headers=(SESSION_HEADER,),
        errors=_INFERENCE_ERRORS,
        admitted=True,
        rated=True,
        streams=True,
    ),
    Endpoint(
        operation="response_create",
        method="POST",
        path="/v1/responses",
        tag="Inference",
        summary="Generate a stateless response",
        permission=Permission.INFERENCE_WRITE,
        key_kind=KeyKind.PROJECT,
        handle=responses.response_create,
        body=responses_wire.ResponsesRequest,
        result=response_object.Response,
        headers=(SESSION_HEADER,),
        errors=_INFERENCE_ERRORS,
        admitted=True,
        rated=True,
        streams=True,
    ),
    Endpoint(
        operation="token_count",
        method="POST",
        path="/v1/messages/count_tokens",
        tag="Inference",
        summary="Count the input tokens of a Messages request",
        permission=Permission.INFERENCE_WRITE,
        key_kind=KeyKind.PROJECT,
        handle=messages.token_count,
        body=messages_wire.TokenCountRequest,
        query=messages_wire.MessagesQuery,
        result=messages_wire.TokenCount,
        headers=(messages.VERSION_HEADER, messages.BETA_HEADER, SESSION_HEADER),
        result_headers=(
            ResultHeader(
                TOKEN_COUNT_ESTIMATED_HEADER,
                "Whether the token count is an estimate. Estimates tend to be too high.",
                {"type": "string", "enum": ["true", "false"]},
            ),
        ),
        errors=_COUNT_ERRORS,
        rated=True,
        error_style=ErrorStyle.COUNTING,
    ),
)

MODEL_ROUTES: tuple[AnyEndpoint, ...] = (
    Endpoint(
        operation="model_read",
        method="GET",
        path="/v1/models/{model}",
        tag="Models",
        summary="Read one model",
        permission=Permission.MODELS_READ,
        key_kind=KeyKind.PROJECT,
        handle=models.model_read,
        result=models_wire.Model,
        errors=_NO_CONFLICT_ERRORS,
    ),
)

MODEL_LISTING: AnyEndpoint = Endpoint(
    operation="model_list",
    method="GET",
    path="/v1/models",
    tag="Models",
    summary="List the models that the caller can use",
    permission=Permission.MODELS_READ,
    key_kind=KeyKind.PROJECT,
    handle=models.model_list,
    result=models_wire.ModelList,
    errors=frozenset(),
)

KEY_USAGE: AnyEndpoint = Endpoint(
    operation="key_usage_read",
    method="GET",
    path="/v1/key/usage",
    tag="Extensions",
    summary="Read the costs and spending caps of the caller's key",
    permission=Permission.INFERENCE_WRITE,
    key_kind=KeyKind.PROJECT,
    handle=key_usage.key_usage_read,
    result=KeyUsage,
    errors=frozenset(),
)

MESSAGES: AnyEndpoint = Endpoint(
    operation="message_create",
    method="POST",
    path="/v1/messages",
    tag="Extensions",
    summary="Generate a message",
    permission=Permission.INFERENCE_WRITE,
    key_kind=KeyKind.PROJECT,
    handle=messages.message_create,
    body=messages_wire.MessagesRequest,
    query=messages_wire.MessagesQuery,
    result=messages_wire.Message,
    errors=_INFERENCE_ERRORS,
    admitted=True,
    rated=True,
    streams=True,
    error_style=ErrorStyle.MESSAGES,
)

EXTENSION_ROUTES: tuple[AnyEndpoint, ...] = (MODEL_LISTING, KEY_USAGE, MESSAGES)

ROUTES: tuple[AnyEndpoint, ...] = INFERENCE_ROUTES + ORGANIZATION_ROUTES + MODEL_ROUTES


def routes_for(conventions: HttpConventions) -> tuple[AnyEndpoint, ...]:
    enabled = (conventions.model_listing, conventions.key_usage, conventions.messages)
    routes = (*ROUTES, *(route for route, on in zip(EXTENSION_ROUTES, enabled, strict=True) if on))
    if not conventions.accept_provider_specific_fields:
        return routes
    return tuple(
        replace(route, body=chat_wire.ReplayingChatRequest)
        if route.body is chat_wire.ChatRequest
        else route
        for route in routes
    )
