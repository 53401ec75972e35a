"""The messages about wrong settings: what is wrong, and how to correct it."""

import difflib
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

from pydantic_core import ErrorDetails

# By pydantic's error type. Braces are the error's details.
_SENTENCES = {
    "missing": "is required",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be an integer",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "is too large",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "string_pattern_mismatch": "must have the form {pattern}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a section with settings of its own",
    "model_attributes_type": "must be a section with settings of its own",
    "path_type": "must be a path",
    "path_parsing": "must be a path",
    "conflicting_setting": "{words}",
}
# At the end of the location if a key of a table is invalid, not its value.
INVALID_KEY = "[key]"
# Before the message of a validator's ValueError.
_VALUE_ERROR_PREFIX = "Value error, "
# Of the TOML library's messages, with the usual cause.
_TOML_HINTS = {
    "Invalid value": "a string needs quotes",
    "Illegal character '\\n'": "a closing quote is missing",
    "Unterminated string": "a closing quote is missing",
    "Expected \"'": "a closing quote is missing",
    "Expected '=' after a key": "a setting is written as name = value",
    "Expected newline or end of document": "a string needs quotes, and each setting a line of its own",
    "Cannot overwrite a value": "the setting occurs twice; remove one",
    "twice": "the section occurs twice; merge the two",
    "Unclosed array": "a closing bracket is missing",
    "Unclosed inline table": "a closing brace is missing",
}


def explanation(
    error: ErrorDetails, *, known_names: Sequence[str], value: str, other_sections: Sequence[str]
) -> str:
    """`known_names` are the settings of the section, `other_sections` those that have one of this name.
    `value` is "" if it may be secret."""
    kind = error["type"]
    if kind in ("extra_forbidden", "literal_error"):
        advice = replacement(error["loc"], error["input"])
        if advice:
            return advice
    if kind == "extra_forbidden":
        return _unknown(str(error["loc"][-1]), known_names, other_sections)
    if kind == "value_error":
        return error["msg"].removeprefix(_VALUE_ERROR_PREFIX)
    sentence = _SENTENCES.get(kind)
    if sentence is None:
        # Pydantic's own never has the value.
        return error["msg"][:1].lower() + error["msg"][1:]
    details = error.get("ctx", {})
    words = sentence.format_map({name: _plain(detail) for name, detail in details.items()})
    if error["loc"] and error["loc"][-1] == INVALID_KEY:
        words = f"the name {words}"
    return words + _fix(error, value)


def unknown_section(name: str, known_names: Sequence[str]) -> str:
    return replacement((name,)) or f"there is no section {name}{nearest(name, known_names)}"


def toml_hint(message: str) -> str:
    return next((f": {hint}" for words, hint in _TOML_HINTS.items() if words in message), "")


def nearest(name: str, known_names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known_names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def toml_value(value: str | float) -> str:
    """Numbers without an exponent."""
    return f"{Decimal(repr(value)):f}" if type(value) in (int, float) else repr(value)


def _unknown(name: str, known_names: Sequence[str], other_sections: Sequence[str]) -> str:
    hint = nearest(name, known_names)
    if not hint and other_sections:
        hint = f"; it belongs under {' or '.join(other_sections)}"
    return f"is not a setting{hint or '; remove it: docs/configuration.md has all settings'}"


def _fix(error: ErrorDetails, value: str) -> str:
    """How to correct the value, or ""."""
    input_value = error["input"]
    match error["type"]:
        case "string_type" if isinstance(input_value, int | float) and not isinstance(
            input_value, bool
        ):
            return f'; write it in quotes: "{value}"' if value else "; write it in quotes"
        case "tuple_type" if isinstance(input_value, dict):
            name = ".".join(part for part in error["loc"] if isinstance(part, str))
            return f"; write [[{name}]] instead of [{name}]"
        case "tuple_type" if isinstance(input_value, str):
            return f"; write [{value}]" if value else "; write it in brackets"
        case "model_type" | "model_attributes_type" if isinstance(input_value, list):
            name = ".".join(part for part in error["loc"] if isinstance(part, str))
            return f"; write [{name}] instead of [[{name}]]"
        case "literal_error" | "enum" if isinstance(input_value, str):
            return nearest(input_value, re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    return ""


def _plain(value: Any) -> Any:
    """So that a message says 5, not 5.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_FIXED: Final = "the gateway has a fixed value for it: remove it"
_DENIED: Final = "list the content in policy.denied_content"
# For settings of earlier versions: a section, a setting, or a setting with a value.
_REPLACEMENTS: Final = {
    "library": "backends with a preset reach providers without a library: docs/providers.md",
    "backends.kind = library": (
        'use kind = "openai" with a preset or a protocol that the provider speaks: docs/providers.md'
    ),
    "backends.identity.authority": "set the variable AZURE_AUTHORITY_HOST",
    "backends.identity.role": "set the variable AWS_ROLE_ARN, or use profile",
    "backends.identity.secret_env": 'write secret = "env:NAME"',
    "backends.identity.secret_file": 'write secret = "file:PATH"',
    "backends.identity.source": (
        "set file, secret or profile, or omit all three: the provider's library then finds the "
        "credentials itself"
    ),
    "backends.identity.token_file": (
        "set AWS_WEB_IDENTITY_TOKEN_FILE or AZURE_FEDERATED_TOKEN_FILE, or use profile or file"
    ),
    "backends.provider": "use preset, which names the provider: docs/providers.md",
    "backends.bounds_reasoning": "use a preset: it knows whether the output limit covers reasoning",
    "backends.cache_salt_field": 'write fields = { cache_salt = "cache_salt" }',
    "backends.cache_shared": "projects share the cache if fields has no cache_salt",
    "backends.include_usage": 'for false write fields = { stream_options = "" }',
    "backends.omitted_fields": 'write fields = { name = "" }',
    "backends.output_bound": (
        'write fields = { max_completion_tokens = "max_tokens" }, or the other way round'
    ),
    "backends.refused_fields": "write fields = { name = false }",
    "backends.renamed_fields": 'write fields = { seed = "random_seed" }',
    **{
        f"alerts.webhook_{name}": 'write webhook = { url = "https://...", secret = "env:NAME" }'
        for name in ("url", "secret", "secret_env", "secret_file")
    },
    "backends.bill_columns": "name the columns in `tollkeeper ledger reconcile --columns`",
    "backends.bill_models": "name the models in `tollkeeper ledger reconcile --model`",
    "console.docs_url": "the console page Alerts names the section of the runbook itself: remove the setting",
    "console.sign_in.organization_claim": "the claim has to be called organization",
    "console.sign_in.public_url": (
        "list the host name of the URL in console.allowed_hosts, and the address of the proxy in front "
        "of the console in console.trusted_proxies"
    ),
    "console.sign_in.scopes": (
        "the console always requests openid, profile and email, and also the scope of a claim if the "
        "provider publishes that scope: remove the setting"
    ),
    "console.tls_certificate_file": "write tls_files = [CERTIFICATE, KEY]",
    "console.tls_key_file": "write tls_files = [CERTIFICATE, KEY]",
    "backends.tokenizer": (
        'the preset or the protocol sets it; write tokenize_path = "none" if the server has none'
    ),
    "embedded.context_length": "the engine uses the largest context_length of its models: remove it",
    "ledger.verify_every_hours": "the ledger is verified every day: remove it",
    "logs.format": "lines are text on a terminal, and JSON everywhere else: remove it",
    "models.unrequested_searches_max": "write token_bounds = { searches = ... }",
    "models.text_bound": 'write token_bounds = { text = "bytes" }',
    "models.thinking_style": "the gateway knows it by the model's name: remove it",
    "models.unasked_service_tier": 'write service_tiers = { unasked = "..." }',
    "models.weight": (
        "the model's own backend has weight 1: divide the weight of each alternative by the weight that "
        "you remove here"
    ),
    "secrets.master_key_env": 'write master_key = "env:NAME"',
    "secrets.master_key_file": 'write master_key = "file:PATH"',
    "limits.bodies_bytes": "it is sixteen times body_bytes, and 128 MiB at least: remove it",
    "limits.key_bodies_bytes": "one key may use eight times body_bytes: remove it",
    "messages": "all published names of web tools are accepted: remove the section",
    "telemetry": (
        "set OpenTelemetry's own variables, OTEL_EXPORTER_OTLP_ENDPOINT and others: "
        "docs/configuration.md"
    ),
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
            *("console.session_s", "database.pool_timeout_s", "database.statement_timeout_s"),
            *("judge.window_characters", "ledger.lease_s"),
            *("limits.administration_per_minute", "limits.body_elements", "limits.calls"),
            *("limits.drain_s", "limits.drains"),
            *("limits.overload_turn_s", "limits.policies", "limits.project_keys"),
            "limits.refused_calls_per_minute",
            *("models.template_tokens", "models.tool_tokens"),
            *("server.body_timeout_s", "server.connections", "server.header_bytes"),
            "server.header_timeout_s",
            *("server.keep_alive_s", "server.write_timeout_s"),
        ),
        _FIXED,
    ),
}


def replacement(location: tuple[int | str, ...], value: Any = None) -> str:
    """Returns "" if there is no advice."""
    name = ".".join(part for part in location if isinstance(part, str))
    advice = _REPLACEMENTS.get(f"{name} = {value}") or _REPLACEMENTS.get(name)
    return f"was removed; {advice}" if advice else ""
