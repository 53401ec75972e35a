"""The settings that were removed, and what an operator uses instead."""

from typing import Any, Final

_FIXED: Final = "the gateway has a fixed value for it: remove it"
_DENIED: Final = "list the content in policy.denied_content"
_TELEMETRY: Final = "set OpenTelemetry's own variable"
# By the name of a section, of a setting, or of a setting and its value.
_REPLACEMENTS: Final = {
    "library": "backends with a preset reach providers without a library: docs/providers.md",
    "backends.kind = library": (
        'use kind = "openai" with a preset or a protocol that the provider speaks: docs/providers.md'
    ),
    "backends.identity.authority": "set the variable AZURE_AUTHORITY_HOST",
    "backends.identity.role": "set the variable AWS_ROLE_ARN, or use profile",
    "backends.identity.source": "name a file, a secret or a profile, or let the library search",
    "backends.identity.token_file": (
        "set AWS_WEB_IDENTITY_TOKEN_FILE or AZURE_FEDERATED_TOKEN_FILE, or use profile or file"
    ),
    "backends.provider": "use preset, which names the provider: docs/providers.md",
    "backends.bounds_reasoning": "use a preset: it knows whether the bound covers reasoning",
    "backends.cache_shared": "projects share the cache if cache_salt_field is empty",
    "backends.include_usage": 'for false write fields = { stream_options = "" }',
    "backends.omitted_fields": 'write fields = { name = "" }',
    "backends.output_bound": (
        'write fields = { max_completion_tokens = "max_tokens" }, or the other way round'
    ),
    "backends.refused_fields": "write fields = { name = false }",
    "backends.renamed_fields": 'write fields = { seed = "random_seed" }',
    "limits.key_bodies_bytes": "one key may use half of bodies_bytes",
    "messages": "all published names of web tools are accepted: remove the section",
    "telemetry.metrics_interval_s": f"{_TELEMETRY}, OTEL_METRIC_EXPORT_INTERVAL (milliseconds)",
    "telemetry.sample_ratio": (
        f"{_TELEMETRY}s, OTEL_TRACES_SAMPLER=parentbased_traceidratio and OTEL_TRACES_SAMPLER_ARG"
    ),
    "telemetry.service_name": f"{_TELEMETRY}, OTEL_SERVICE_NAME",
    **{
        f"models.tokens_per_{name}": f"write token_bounds = {{ {name} = ... }}"
        for name in ("image", "file", "audio", "video", "web_search")
    },
    **{
        f"policy.unreadable_{name}": _DENIED
        for name in ("images", "audio", "video", "files", "sealed_reasoning")
    },
    **dict.fromkeys(
        (
            "alerts.interval_s",
            *("backends.answer_bytes", "backends.ejection_max_s", "backends.ejection_s"),
            *("backends.failures_to_eject", "backends.fan_out", "backends.idle_connections"),
            *("backends.keep_alive_s", "backends.organizations_to_eject"),
            *("backends.record_bytes", "backends.tokenize_timeout_s", "backends.waiting_calls"),
            *("console.session_s", "database.statement_timeout_s", "judge.window_characters"),
            *("limits.administration_per_minute", "limits.body_elements", "limits.drains"),
            *("limits.overload_turn_s", "limits.policies", "limits.project_keys"),
            "limits.refused_calls_per_minute",
            *("models.template_tokens", "models.tool_tokens"),
            *("server.body_timeout_s", "server.header_bytes", "server.header_timeout_s"),
            "server.write_timeout_s",
            "telemetry.content_bytes",
        ),
        _FIXED,
    ),
}


def replacement(location: tuple[int | str, ...], value: Any = None) -> str:
    """Says what replaced a removed setting or value; empty if the name was never a setting."""
    name = ".".join(part for part in location if isinstance(part, str))
    found = _REPLACEMENTS.get(f"{name} = {value}") or _REPLACEMENTS.get(name)
    return f"was removed; {found}" if found else ""
