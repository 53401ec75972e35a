"""Converts the configuration of a LiteLLM proxy into a settings file, and lists the settings that have
no equivalent.

LiteLLM's `model_list` contains deployments. A deployment maps a model name for clients to a model at a
provider. Deployments with the same name become one model: the first deployment in LiteLLM's order becomes
the model's own backend, and the other deployments become its alternatives. Deployments with the same
backend settings share a backend, unless they belong to the same model.
"""

import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

from tollkeeper.backends.presets import PRESETS
from tollkeeper.settings.places import SettingsError

# LiteLLM reads a value with this prefix from an environment variable.
_VARIABLE_PREFIX = "os.environ/"
_ALTERNATIVES_MAX = 16
# The settings that LiteLLM uses as weights. The first one that is there counts.
_WEIGHTS = ("weight", "rpm", "tpm")
_WEIGHT_MIN, _WEIGHT_MAX = 0.000_001, 1_000_000
_RETRIES_MAX = 10
# Texts that mean "no value" in YAML.
_NO_VALUE = ("", "null", "~", "none")
# Placeholders that operators write as the key if the server does not check keys.
_NO_KEYS = (*_NO_VALUE, "empty", "fake", "fake-key", "dummy")
# Placeholders for a model whose limits are not in the configuration: LiteLLM has its own list of
# limits. `tollkeeper model import` compares the context length with a public list.
_CONTEXT_LENGTH = 8192
_OUTPUT_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class _Provider:
    """Describes how to convert the deployments at one provider."""

    preset: str = ""
    # The provider's address, if there is no preset with an address.
    url: str = ""
    # The variable from which LiteLLM reads the key if the configuration has no key.
    key_env: str = ""
    # The path that LiteLLM appends to the configured address.
    path: str = ""


# Maps the prefix of a LiteLLM model name, such as "groq" in "groq/llama", to its provider.
_PROVIDERS: Final = {
    "openai": _Provider("openai"),
    "azure": _Provider("azure", key_env="AZURE_API_KEY", path="/openai/v1"),
    "anthropic": _Provider("anthropic", path="/v1"),
    "gemini": _Provider("gemini"),
    "vertex_ai": _Provider("vertex-gemini"),
    "bedrock": _Provider("bedrock"),
    "mistral": _Provider("mistral"),
    "groq": _Provider("groq"),
    "deepseek": _Provider("deepseek"),
    "xai": _Provider("xai"),
    "together_ai": _Provider("together", key_env="TOGETHERAI_API_KEY"),
    "fireworks_ai": _Provider("fireworks", key_env="FIREWORKS_AI_API_KEY"),
    "openrouter": _Provider("openrouter"),
    "perplexity": _Provider("perplexity", key_env="PERPLEXITYAI_API_KEY"),
    "cohere": _Provider("cohere"),
    "cohere_chat": _Provider("cohere"),
    "hosted_vllm": _Provider("vllm", key_env="HOSTED_VLLM_API_KEY"),
    "ollama": _Provider("ollama", path="/v1"),
    "ollama_chat": _Provider("ollama", path="/v1"),
    "lm_studio": _Provider("lmstudio"),
    "llamafile": _Provider("llamacpp"),
    "cerebras": _Provider(url="https://api.cerebras.ai/v1", key_env="CEREBRAS_API_KEY"),
    "nvidia_nim": _Provider(
        url="https://integrate.api.nvidia.com/v1", key_env="NVIDIA_NIM_API_KEY"
    ),
    "sambanova": _Provider(url="https://api.sambanova.ai/v1", key_env="SAMBANOVA_API_KEY"),
    "deepinfra": _Provider(url="https://api.deepinfra.com/v1/openai", key_env="DEEPINFRA_API_KEY"),
    "openai_like": _Provider(),
    "custom_openai": _Provider(),
    "litellm_proxy": _Provider(key_env="LITELLM_PROXY_API_KEY"),
    "xinference": _Provider(),
}
# If a model's name has no prefix, LiteLLM recognises these providers by the beginning of the name.
_BARE_NAMES = (
    (re.compile(r"gpt-|chatgpt|o[134](-|$)"), "openai"),
    (re.compile("claude"), "anthropic"),
)
# Maps each price setting of LiteLLM to the price dimension.
_PRICES: Final = {
    "input_cost_per_token": "prompt",
    "output_cost_per_token": "completion",
    "cache_read_input_token_cost": "input_cache_read",
    "cache_creation_input_token_cost": "input_cache_write",
    "cache_creation_input_token_cost_above_1hr": "input_cache_write_1h",
    "input_cost_per_audio_token": "input_audio",
    "output_cost_per_audio_token": "output_audio",
    "output_cost_per_image_token": "output_image",
    "input_cost_per_image": "image",
    "input_cost_per_request": "request",
}
# The name of a price for long prompts, for example input_cost_per_token_above_200k_tokens.
_TIER = re.compile(r"(\w+)_above_(\d+)k_tokens")
# The modes of models that the gateway can serve.
_MODES = ("chat", "completion", "responses")
# Maps LiteLLM's settings to features of the model, and below to its input modalities.
_FEATURES: Final = {
    "supports_function_calling": "tools",
    "supports_response_schema": "structured_outputs",
    "supports_reasoning": "reasoning",
    "supports_web_search": "web_search",
}
_MODALITIES: Final = {
    "supports_vision": "image",
    "supports_pdf_input": "file",
    "supports_audio_input": "audio",
    "supports_video_input": "video",
}
# Models of these presets get the features `json_mode` and `structured_outputs`, unless the configuration
# says otherwise.
_JSON_PRESETS = ("openai", "azure", "gemini", "vertex-gemini")

# The reasons for omitting a setting.
_BY_CLIENT = "clients send it with each request; there are no defaults for a model"
_HEALTH = "replicas are probed and ejected without settings; docs/console.md says how"
_LIMITS = "rates are limited for projects, not for deployments: tollkeeper limit set"
_BUDGETS = "an organization has credit and caps: tollkeeper credit grant, tollkeeper cap set"
_DEADLINE = "all calls have one deadline, limits.inference_deadline_s"
_STATE = "gateways share their state in PostgreSQL; no cache server is needed"
_TELEMETRY = (
    "/metrics serves Prometheus; OTEL_EXPORTER_OTLP_ENDPOINT sends traces; logs are JSON lines"
)
_KEYS = "create keys with tollkeeper project-key create; keys of LiteLLM are not converted"
_NOT_COPIED = "a secret is not copied"
_FALLBACK = "a model falls back for errors only, through its alternatives"
# The reason for omitting each setting, by its name. A name has the same meaning in all sections.
_REASONS: Final = {
    **dict.fromkeys(
        (
            *(
                "temperature",
                "top_p",
                "top_k",
                "max_tokens",
                "max_completion_tokens",
                "seed",
                "stop",
            ),
            *("n", "user", "presence_penalty", "frequency_penalty", "reasoning_effort", "thinking"),
        ),
        _BY_CLIENT,
    ),
    **dict.fromkeys(("rpm", "tpm", "max_parallel_requests"), _LIMITS),
    **dict.fromkeys(("timeout", "stream_timeout"), _DEADLINE),
    **dict.fromkeys(("max_budget", "budget_duration", "max_internal_user_budget"), _BUDGETS),
    **dict.fromkeys(
        ("allowed_fails", "cooldown_time", "retry_policy", "disable_cooldowns"), _HEALTH
    ),
    **dict.fromkeys(
        ("allowed_fails_policy", "background_health_checks", "health_check_interval"), _HEALTH
    ),
    **dict.fromkeys(("redis_host", "redis_port", "redis_password", "redis_url"), _STATE),
    **dict.fromkeys(("context_window_fallbacks", "content_policy_fallbacks"), _FALLBACK),
    **dict.fromkeys(
        ("success_callback", "failure_callback", "callbacks", "service_callbacks", "set_verbose"),
        _TELEMETRY,
    ),
    "callback_settings": _TELEMETRY,
    "api_version": "the v1 address of Azure needs none",
    "base_model": "prices are declared for each model, in pricing",
    "routing_strategy": "calls are shared by weight, as with simple-shuffle",
    "enable_pre_call_checks": "the context is always checked before a call",
    "cache": "answers are not cached; a provider's prompt cache is used and charged",
    "cache_params": "answers are not cached; a provider's prompt cache is used and charged",
    "drop_params": "a field that a model lacks is answered with 501; a backend's fields can omit it",
    "additional_drop_params": "a backend's fields can omit a field",
    "guardrails": "policies judge requests and answers: docs/guides/policies.md",
    "master_key": f"{_KEYS}, and operators use commands and the console",
    "database_url": (
        "it is LiteLLM's database; create another one (docs/guides/deploy.md) and set database.url"
    ),
    "store_model_in_db": "models that are only in LiteLLM's database are not in its configuration",
    "alerting": "alerts are posted to a signed webhook: [alerts]",
    "alerting_threshold": "alerts have fixed thresholds: docs/runbook.md",
    "custom_auth": _KEYS,
    "global_max_parallel_requests": "a process has at most 10000 calls in flight",
    "environment_variables": f"{_NOT_COPIED}; set these variables for tollkeeper serve",
    "include": "included files are not read; merge them into one file",
    "default_team_settings": "organizations and projects are created with commands",
    "forward_client_headers_to_llm_api": "headers of clients are never sent to a backend",
    "pass_through_endpoints": "only calls that can be charged exactly are forwarded",
}
_NO_REASON = "there is no such setting"


@dataclass(frozen=True, slots=True)
class Unmapped:
    """Names a setting that was omitted or needs the operator's attention, and says why."""

    setting: str
    reason: str


@dataclass(slots=True)
class _Conversion:
    """Collects the converted settings. Their order is the order in the settings file."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    # The settings of each backend, by the backend's name.
    backends: dict[str, dict[str, Any]] = field(default_factory=dict)
    # The deployments of each model, by the model's name for clients.
    models: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    unmapped: list[Unmapped] = field(default_factory=list)
    # For each secret in the configuration, the environment variable that replaces it.
    variables: dict[str, str] = field(default_factory=dict)

    def report_unmapped(self, setting: str, reason: str = "") -> None:
        name = setting.rpartition(".")[2]
        unmapped = Unmapped(_one_line(setting), reason or _REASONS.get(name, _NO_REASON))
        # An alias is converted from the same deployments as its model.
        if unmapped not in self.unmapped:
            self.unmapped.append(unmapped)


def convert(path: Path) -> tuple[str, tuple[Unmapped, ...]]:
    """Returns the text of the settings file, and the settings that have no equivalent. Raises
    SettingsError if the configuration cannot be read or has no model that can be converted."""
    document = _section(_read(path), "the file")
    conversion = _Conversion()
    credentials = {
        str(entry.get("credential_name")): _section(
            entry.get("credential_values"), "credential_list"
        )
        for entry in _entries(document.pop("credential_list", []), "credential_list")
    }
    declared = _entries(document.pop("model_list", None), "model_list")
    for position, entry in enumerate(declared):
        _add_deployment(conversion, f"model_list[{position}]", entry, credentials)
    if not conversion.models:
        reasons = "; ".join(
            f"{omitted.setting}: {omitted.reason}" for omitted in conversion.unmapped
        )
        raise SettingsError(
            f"{path}: no model can be converted: {reasons or 'model_list is empty'}"
        )
    sections = {
        name: _section(document.pop(name, {}), name)
        for name in ("router_settings", "litellm_settings", "general_settings")
    }
    models = _with_fallbacks(conversion, sections)
    _add_sections(conversion, sections)
    for name in document:
        conversion.report_unmapped(str(name))
    return _toml(conversion, models), tuple(conversion.unmapped)


def _read(path: Path) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise SettingsError("PyYAML is not installed; install tollkeeper[litellm].") from None

    class TextLoader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """Reads every scalar as text, so that a price is not converted to a float, which is inexact."""

        # Only the merge key `<<` keeps its special meaning.
        yaml_implicit_resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}

    try:
        return yaml.load(path.read_text(encoding="utf-8"), TextLoader)
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}.") from exc
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as exc:
        mark = getattr(exc, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise SettingsError(f"{path} is not YAML{place}.") from None


def _add_deployment(
    conversion: _Conversion, place: str, entry: Mapping[str, Any], credentials: Mapping[str, Any]
) -> None:
    """Converts one entry of `model_list`. `place` is the position of the entry, for messages."""
    name = _text(entry.get("model_name"), f"{place}.model_name")
    parameters = {**_section(entry.get("litellm_params"), f"{place}.litellm_params")}
    upstream = _text(parameters.pop("model", None), f"{place}.litellm_params.model")
    shared = parameters.pop("litellm_credential_name", None)
    if shared is not None and str(shared) not in credentials:
        raise SettingsError(f"{place}: credential_list has no {str(shared)!r}")
    parameters = {**credentials.get(str(shared), {}), **parameters}
    model_info = {**_section(entry.get("model_info", {}), f"{place}.model_info")}
    if "*" in name + upstream:
        conversion.report_unmapped(
            f"{place} ({name})",
            "wildcards are not converted: declare each model with its limits and prices",
        )
        return
    mode = str(model_info.pop("mode", "chat"))
    if mode not in _MODES:
        conversion.report_unmapped(f"{place} ({name})", f"models for {mode} are not served")
        return
    at = f"{place}.litellm_params"
    backend = _backend(conversion, at, upstream, parameters)
    if backend is None:
        return
    settings, upstream_model = backend
    deployment = {
        "place": place,
        "settings": settings,
        "upstream_model": upstream_model,
        "order": _number(parameters.pop("order", "0")) or Decimal(),
        "weights": _weights(parameters),
        **_pricing(conversion, at, parameters, model_info, name),
        **_limits_and_features(conversion, place, model_info, settings),
    }
    for setting in parameters:
        conversion.report_unmapped(f"{at}.{setting}")
    for setting in model_info:
        if setting not in ("id", "version", "description", "db_model"):
            conversion.report_unmapped(f"{place}.model_info.{setting}")
    conversion.models.setdefault(name, []).append(deployment)


def _backend(
    conversion: _Conversion, place: str, model: str, parameters: dict[str, Any]
) -> tuple[dict[str, Any], str] | None:
    """Returns the settings of the deployment's backend, and the model's name at this backend. Reports
    the deployment as unmapped and returns None if it cannot be converted."""
    prefix, slash, name = model.partition("/")
    custom_provider = parameters.pop("custom_llm_provider", None)
    if not slash or custom_provider is not None or prefix not in _PROVIDERS:
        provider_by_name = next(
            (provider for pattern, provider in _BARE_NAMES if pattern.match(model)), None
        )
        provider_name = str(custom_provider) if custom_provider is not None else provider_by_name
        if provider_name not in _PROVIDERS:
            shown_name = repr(
                str(custom_provider)
                if custom_provider is not None
                else (prefix if slash else model)
            )
            conversion.report_unmapped(
                f"{place}.model", f"{_one_line(shown_name)} is not a known provider"
            )
            return None
        prefix, name = (
            provider_name,
            name if custom_provider is not None and prefix == custom_provider else model,
        )
    provider, preset = _PROVIDERS[prefix], _PROVIDERS[prefix].preset
    settings: dict[str, Any] = {}
    if prefix == "vertex_ai":
        preset = "vertex" if "claude" in name else preset
        url = _vertex_url(conversion, place, preset, parameters)
        settings |= _identity(file=parameters.pop("vertex_credentials", None))
    elif prefix == "bedrock":
        url, name = _bedrock_url(parameters, name)
        if "api_key" not in parameters:
            settings |= {"credential": "sigv4"}
            settings |= _identity(profile=parameters.pop("aws_profile_name", None))
            _omit_aws_keys(conversion, place, parameters)
    else:
        url = _url(conversion, place, provider, parameters)
        # In LiteLLM, `openai/` with another address means any server that speaks OpenAI's protocol.
        preset = "" if prefix == "openai" and url and "api.openai.com" not in url else preset
    if url is None:
        return None
    has_address = bool(preset and PRESETS[preset].url)
    if not url and not has_address:
        conversion.report_unmapped(
            f"{place}.api_base", f"it is missing, and the address of {prefix} is not known"
        )
        return None
    if url and not url.startswith(("http://", "https://")):
        conversion.report_unmapped(
            f"{place}.api_base", "it is not an address with http:// or https://"
        )
        return None
    address: dict[str, Any] = {"preset": preset} if preset else {}
    address |= {"urls": [url]} if url else {}
    return {
        **address,
        **_key(conversion, place, provider, preset, parameters),
        **settings,
    } | _headers(conversion, place, parameters), name


def _url(
    conversion: _Conversion, place: str, provider: _Provider, parameters: dict[str, Any]
) -> str | None:
    """Returns the address, or "" if neither the configuration nor `provider.url` contains an address.
    Reports the address as unmapped and returns None if it is in a variable that is not set."""
    address = str(parameters.pop("api_base", parameters.pop("base_url", "")) or "")
    if address.startswith(_VARIABLE_PREFIX):
        variable = address.removeprefix(_VARIABLE_PREFIX)
        address = os.environ.get(variable, "")
        if not address:
            conversion.report_unmapped(
                f"{place}.api_base",
                f"set the variable {_one_line(variable)} and repeat: an address is needed",
            )
            return None
    base = address.rstrip("/")
    if not base or (provider.path and base.endswith(provider.path)):
        return base or provider.url
    return base + provider.path


def _vertex_url(
    conversion: _Conversion, place: str, preset: str, parameters: dict[str, Any]
) -> str | None:
    """Returns the address. Reports the deployment as unmapped and returns None if the configuration does not
    contain the project and the location."""
    project, region = (
        str(parameters.pop(f"vertex_{part}", "")) for part in ("project", "location")
    )
    if not project or not region or _VARIABLE_PREFIX in project + region:
        conversion.report_unmapped(
            f"{place}.vertex_project", "the address needs the project and the location as text"
        )
        return None
    host = "aiplatform" if region == "global" else f"{region}-aiplatform"
    form = PRESETS[preset].address_form.replace("REGION-aiplatform", host)
    return form.replace("PROJECT", project).replace("REGION", region)


def _bedrock_url(parameters: dict[str, Any], name: str) -> tuple[str, str]:
    """Returns the address, and the model's name without LiteLLM's prefixes."""
    name = re.sub(r"^(converse|invoke|converse_like)/", "", name)
    region = str(parameters.pop("aws_region_name", "") or "")
    parted = re.fullmatch(r"([a-z]{2}(?:-[a-z]+)+-\d)/(.+)", name)
    if parted:
        region, name = parted[1], parted[2]
    if not region or region.startswith(_VARIABLE_PREFIX):
        region = os.environ.get(region.removeprefix(_VARIABLE_PREFIX) or "AWS_REGION", "us-east-1")
    address = PRESETS["bedrock"].address_form.replace("REGION", region)
    return str(parameters.pop("aws_bedrock_runtime_endpoint", address)), name


def _omit_aws_keys(conversion: _Conversion, place: str, parameters: dict[str, Any]) -> None:
    for setting in [name for name in parameters if name.startswith("aws_")]:
        conversion.report_unmapped(
            f"{place}.{setting}", "AWS's own library finds keys and roles: set its variables"
        )
        del parameters[setting]


def _identity(**values: Any) -> dict[str, Any]:
    named = {name: str(value) for name, value in values.items() if value}
    return {"identity": named} if named else {}


def _key(
    conversion: _Conversion,
    place: str,
    provider: _Provider,
    preset: str,
    parameters: dict[str, Any],
) -> dict[str, Any]:
    """Returns the setting `api_key_env`, or {} if no key is needed or the preset names the variable. If the
    configuration contains the key itself, chooses a variable and reports it."""
    key = str(parameters.pop("api_key", "") or "")
    preset_variable = PRESETS[preset].key_env if preset else ""
    if key.startswith(_VARIABLE_PREFIX):
        variable = key.removeprefix(_VARIABLE_PREFIX)
    elif not key:
        variable = provider.key_env
        if preset and not preset_variable:
            # The server checks no key, or the provider uses an identity.
            return {}
    elif key.lower() in _NO_KEYS:
        return {}
    else:
        base = preset_variable or provider.key_env or "BACKEND_API_KEY"
        used_names = set(conversion.variables.values())
        names = (
            base if number == 1 else f"{base}_{number}" for number in range(1, len(used_names) + 2)
        )
        variable = conversion.variables.setdefault(
            key, next(name for name in names if name not in used_names)
        )
        conversion.report_unmapped(
            f"{place}.api_key", f"{_NOT_COPIED}; put it into the variable {variable}"
        )
    return {"api_key_env": variable} if variable and variable != preset_variable else {}


def _headers(conversion: _Conversion, place: str, parameters: dict[str, Any]) -> dict[str, Any]:
    organization = parameters.pop("organization", None)
    extra_headers = {**_section(parameters.pop("extra_headers", {}), f"{place}.extra_headers")}
    headers = {str(name).lower(): str(value) for name, value in extra_headers.items()}
    if isinstance(organization, str):
        headers["openai-organization"] = organization
    elif organization is not None:
        conversion.report_unmapped(
            f"{place}.organization", "a backend has one organization; declare one for each"
        )
    for name in [name for name, value in headers.items() if value.startswith(_VARIABLE_PREFIX)]:
        conversion.report_unmapped(
            f"{place}.extra_headers.{name}", "a header's value cannot be a variable"
        )
        del headers[name]
    return {"headers": headers} if headers else {}


def _weights(parameters: dict[str, Any]) -> dict[str, Decimal]:
    """Returns those settings of the deployment that LiteLLM uses as weights."""
    numbers = {name: _number(parameters.get(name)) for name in _WEIGHTS}
    parameters.pop("weight", None)
    return {name: number for name, number in numbers.items() if number is not None}


def _pricing(
    conversion: _Conversion,
    place: str,
    parameters: dict[str, Any],
    model_info: dict[str, Any],
    name: str,
) -> dict[str, Any]:
    """Returns the settings `pricing` and `price_tiers`."""
    plain: dict[str, str] = {}
    tiers: dict[int, dict[str, str]] = {}
    settings = {**model_info, **parameters}
    for setting, value in settings.items():
        tier = _TIER.fullmatch(setting)
        dimension = _PRICES.get(tier[1] if tier else setting)
        number = _number(value)
        if dimension is None or number is None:
            continue
        into = tiers.setdefault(int(tier[2]) * 1000, {}) if tier else plain
        into[dimension] = f"{number.normalize():f}"
        parameters.pop(setting, None)
        model_info.pop(setting, None)
    if not plain:
        conversion.report_unmapped(
            f"{place} ({name})",
            "the model has no price per token, so calls cost nothing until you declare pricing;"
            " tollkeeper model import shows public prices",
        )
    # A tier needs all prices, so the prices without a tier are copied into it.
    return {
        "pricing": plain,
        "price_tiers": [
            {"above_tokens": above, "pricing": {**plain, **prices}}
            for above, prices in sorted(tiers.items())
        ],
    }


def _limits_and_features(
    conversion: _Conversion, place: str, model_info: dict[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the limits, features and modalities of a model. LiteLLM finds these values by the model's
    name, so they are often missing in the configuration."""
    context = _number(model_info.pop("max_input_tokens", None))
    output = _number(model_info.pop("max_output_tokens", model_info.pop("max_tokens", None)))
    model_info.pop("max_tokens", None)
    if context is None or output is None:
        conversion.report_unmapped(
            f"{place}.model_info.max_input_tokens",
            f"it is missing; context_length {_CONTEXT_LENGTH} and max_output_length"
            f" {_OUTPUT_LENGTH} are placeholders if the configuration has no value",
        )
    features = ["tools"]
    if settings.get("preset") in _JSON_PRESETS:
        features += ["json_mode", "structured_outputs"]
    for setting, feature in _FEATURES.items():
        declared = str(model_info.pop(setting, "")).lower()
        if declared == "true" and feature not in features:
            features.append(feature)
        elif declared == "false" and feature in features:
            features.remove(feature)
    enabled = [
        name for name, _ in _MODALITIES.items() if str(model_info.pop(name, "")).lower() == "true"
    ]
    return {
        # None if the configuration has no value.
        "context_length": int(context) if context else None,
        "max_output_length": int(output) if output else None,
        "input_modalities": ["text", *(_MODALITIES[name] for name in enabled)],
        "supported_features": features,
    }


def _with_fallbacks(
    conversion: _Conversion, sections: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the models. The backends of a model are the backends of its own deployments, followed by the
    backends of its fallbacks. In LiteLLM, a fallback is another model."""
    fallbacks: dict[str, list[str]] = {}
    default_fallbacks: list[str] = []
    for name in ("litellm_settings", "router_settings"):
        for entry in _entries(sections[name].pop("fallbacks", []), f"{name}.fallbacks"):
            for model, fallback_names in entry.items():
                fallbacks[str(model)] = _names(fallback_names, f"{name}.fallbacks")
        default_fallbacks += _names(
            sections[name].pop("default_fallbacks", []), f"{name}.default_fallbacks"
        )
    aliases = _section(
        sections["router_settings"].pop("model_group_alias", {}),
        "router_settings.model_group_alias",
    )
    targets = {
        str(alias): str(target.get("model") if isinstance(target, Mapping) else target)
        for alias, target in aliases.items()
    }
    for name in {name for names in fallbacks.values() for name in names} | set(default_fallbacks):
        if name not in conversion.models:
            conversion.report_unmapped(
                f"fallbacks ({_one_line(name)})", "this model is not in the file"
            )
    models = []
    for name, target in [*((name, name) for name in conversion.models), *targets.items()]:
        if target not in conversion.models:
            conversion.report_unmapped(
                f"model_group_alias.{name}", "the alias's model is not in the file"
            )
            continue
        fallback_names = fallbacks.get(name, fallbacks.get(target, default_fallbacks))
        groups = [
            target,
            *(
                fallback
                for fallback in fallback_names
                if fallback != target and fallback in conversion.models
            ),
        ]
        models.append(_model(conversion, name, groups))
    return models


def _model(conversion: _Conversion, name: str, groups: Sequence[str]) -> dict[str, Any]:
    """Returns the settings of a model. Its first deployment becomes the model's own backend, all others
    become alternatives. `groups` are LiteLLM's names of the model and its fallbacks."""
    deployments = [
        (position, deployment)
        for position, group in enumerate(groups)
        for deployment in sorted(
            conversion.models[group], key=lambda deployment: deployment["order"]
        )
    ]
    # A pair is the position of the group and LiteLLM's order. The index of the pair in this list
    # becomes the `order` of the backend.
    ranks = sorted({(position, deployment["order"]) for position, deployment in deployments})
    if len(deployments) > _ALTERNATIVES_MAX + 1:
        conversion.report_unmapped(
            f"model_list ({name})", f"only {_ALTERNATIVES_MAX + 1} of its deployments are used"
        )
    weights: list[float] = []
    for rank in ranks:
        of_rank = [
            deployment
            for position, deployment in deployments
            if (position, deployment["order"]) == rank
        ]
        weights += _relative_weights(conversion, name, of_rank)
    backend_names: list[str] = []
    for _, deployment in deployments[: _ALTERNATIVES_MAX + 1]:
        backend_names.append(_backend_name(conversion, deployment["settings"], backend_names))
    (_, first_deployment), *other_deployments = deployments[: _ALTERNATIVES_MAX + 1]
    model = {
        "id": name,
        "backend": backend_names[0],
        "upstream_model": first_deployment["upstream_model"],
        **_limits(conversion, name, deployments),
        **{
            setting: _common(conversion, name, setting, deployments)
            for setting in ("input_modalities", "supported_features")
        },
        "supported_sampling_parameters": ["temperature", "top_p", "stop"],
        "pricing": first_deployment["pricing"],
        "price_tiers": first_deployment["price_tiers"],
    }
    model["alternatives"] = [
        {
            "backend": backend_names[index],
            "upstream_model": deployment["upstream_model"],
            "order": ranks.index((position, deployment["order"])),
            "weight": weights[index],
            "pricing": deployment["pricing"],
            "price_tiers": deployment["price_tiers"],
        }
        for index, (position, deployment) in enumerate(other_deployments, 1)
    ]
    return model


def _limits(
    conversion: _Conversion, name: str, deployments: Sequence[tuple[int, dict[str, Any]]]
) -> dict[str, int]:
    """Returns the limits of a model: the largest of its own deployments. Fallbacks do not count,
    because in LiteLLM they are other models. Reports each deployment with lower limits, because a call
    that needs more fails there."""

    def largest(setting: str) -> int | None:
        own = [deployment[setting] for position, deployment in deployments if position == 0]
        return max((limit for limit in own if limit is not None), default=None)

    output = largest("max_output_length")
    context = largest("context_length") or max(_CONTEXT_LENGTH, output or 0)
    limits = {
        "context_length": context,
        "max_output_length": min(output or _OUTPUT_LENGTH, context),
    }
    for _, deployment in deployments:
        for setting, limit in limits.items():
            if (deployment[setting] or limit) < limit:
                conversion.report_unmapped(
                    f"{deployment['place']}.model_info ({setting} = {deployment[setting]})",
                    f"a model has one {setting}, for {name} {limit}: a call that needs more than"
                    " this deployment has fails if it is sent there",
                )
    return limits


def _relative_weights(
    conversion: _Conversion, name: str, deployments: Sequence[Mapping[str, Any]]
) -> list[float]:
    """Returns the weights of deployments with the same order, divided by the first weight, because a
    model's own backend has weight 1. If a deployment has no weight, all get weight 1."""
    every = [deployment["weights"] for deployment in deployments]
    for setting in _WEIGHTS:
        if all(weights.get(setting) for weights in every):
            first = every[0][setting]
            relative = (float(weights[setting] / first) for weights in every)
            return [min(max(weight, _WEIGHT_MIN), _WEIGHT_MAX) for weight in relative]
    if len(every) > 1 and any(every):
        places = ", ".join(deployment["place"] for deployment in deployments)
        conversion.report_unmapped(
            f"weights ({name})",
            f"not all of {places} have a positive {', '.join(_WEIGHTS[:-1])} or {_WEIGHTS[-1]}:"
            " each gets the weight 1",
        )
    return [1] * len(every)


def _common(
    conversion: _Conversion,
    name: str,
    setting: str,
    deployments: Sequence[tuple[int, Mapping[str, Any]]],
) -> list[str]:
    """Returns what all deployments support. A deployment could silently ignore what it does not
    support, so the model does not offer it, and the omission is reported."""
    lists: list[list[str]] = [deployment[setting] for _, deployment in deployments]
    common = [item for item in lists[0] if all(item in other for other in lists)]
    omitted = [item for item in lists[0] if item not in common]
    if omitted:
        conversion.report_unmapped(
            f"{setting} ({name})",
            f"{', '.join(omitted)}: not all of its deployments and fallbacks declare this",
        )
    return common


def _backend_name(
    conversion: _Conversion, settings: dict[str, Any], used_names: Sequence[str]
) -> str:
    """Returns the name of a backend with these settings, and adds such a backend if there is none. A
    model can name a backend only once, so the names in `used_names` are skipped: the model's second
    deployment with the same settings gets another backend."""
    base = str(settings.get("preset") or "server")
    for number in range(1, len(conversion.backends) + 2):
        name = base if number == 1 else f"{base}-{number}"
        if name in used_names:
            continue
        if conversion.backends.setdefault(name, settings) == settings:
            return name
    raise AssertionError("the loop tries one name more than there are backends")


def _add_sections(conversion: _Conversion, sections: Mapping[str, dict[str, Any]]) -> None:
    """Converts the sections that are not about models, and reports the omitted settings."""
    # The clients may use LiteLLM's SDK.
    conversion.sections["conventions"] = {"accept_provider_specific_fields": True}
    conversion.sections["extensions"] = {"model_listing": True, "messages": True}
    router, library, general = (
        sections[name] for name in ("router_settings", "litellm_settings", "general_settings")
    )
    request_timeout = _number(library.pop("request_timeout", None))
    deadline = _number(router.pop("timeout", None)) or request_timeout
    limits: dict[str, Any] = {}
    if deadline:
        limits["inference_deadline_s"] = min(max(int(deadline), 1), 86400)
    megabytes = _number(general.pop("max_request_size_mb", None))
    if megabytes:
        limits["body_bytes"] = min(max(int(megabytes * 2**20), 1024), 2**30)
    retries = _number(library.pop("num_retries", None))
    retries = _number(router.pop("num_retries", None)) or retries
    if retries is not None:
        for settings in conversion.backends.values():
            settings["retries"] = min(int(retries), _RETRIES_MAX)
    pool = _number(general.pop("database_connection_pool_limit", None))
    days = re.fullmatch(r"(\d+)d", str(general.get("maximum_spend_logs_retention_period")))
    if days:
        del general["maximum_spend_logs_retention_period"]
    if str(router.get("routing_strategy")) == "simple-shuffle":
        del router["routing_strategy"]
    library.pop("json_logs", None)
    conversion.sections |= {
        "limits": limits,
        "database": {"pool_size": min(max(int(pool), 2), 1000)} if pool else {},
        "activity": {"retention_days": max(int(days[1]), 1)} if days else {},
    }
    for section, settings in sections.items():
        for name in settings:
            conversion.report_unmapped(f"{section}.{name}")


def _toml(conversion: _Conversion, models: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "# Converted from the configuration of a LiteLLM proxy. docs/guides/migrating-from-litellm.md"
    ]
    lines += [
        "# explains each line. These settings have no equivalent, or need your attention:",
        "#",
    ]
    lines += [f"# {omitted.setting}: {omitted.reason}" for omitted in conversion.unmapped] or [
        "# (none)"
    ]
    for name, settings in conversion.sections.items():
        lines += _table(f"[{name}]", settings) if settings else []
    for name, settings in conversion.backends.items():
        lines += _table("[[backends]]", {"name": name, **settings})
    for model in models:
        plain = {name: value for name, value in model.items() if name != "alternatives"}
        lines += _table("[[models]]", plain)
        for alternative in model["alternatives"]:
            lines += _table("[[models.alternatives]]", alternative)
    return "\n".join(lines) + "\n"


def _table(header: str, settings: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield header
    for name, value in settings.items():
        if value not in ({}, []):
            yield f"{name} = {_toml_value(value)}"


def _toml_value(value: Any) -> str:
    match value:
        case str():
            # A JSON string is also a TOML string, except that TOML requires an escape for U+007F.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(_toml_value, value))}]"
        case Mapping():
            pairs = (f"{_toml_key(name)} = {_toml_value(inner)}" for name, inner in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case _:
            return json.dumps(value)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_value(name)


def _section(value: Any, place: str) -> dict[str, Any]:
    if isinstance(value, str) and value.lower() in _NO_VALUE:
        return {}
    if not isinstance(value, dict):
        raise SettingsError(f"{_one_line(place)} must be a mapping of names to values")
    return {str(name): inner for name, inner in value.items()}


def _entries(value: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(value, str) and value.lower() in _NO_VALUE:
        return []
    if not isinstance(value, list):
        raise SettingsError(f"{place} must be a list")
    return [_section(entry, f"{place}[{at}]") for at, entry in enumerate(value)]


def _names(value: Any, place: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise SettingsError(f"{place} must be a list of model names")
    return list(value)


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{place} must be a string")
    return value


def _number(value: Any) -> Decimal | None:
    try:
        number = Decimal(str(value).replace("_", ""))
    except InvalidOperation:
        return None
    return number if number.is_finite() and number >= 0 else None


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
