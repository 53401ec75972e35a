"""Converts the configuration of a LiteLLM proxy into a settings file, and lists what it doesn't know.

LiteLLM's `model_list` has deployments: a name for clients and a model at a provider. Deployments of one
name become one model, the first in LiteLLM's order its own backend, the others its alternatives. The
converter takes out what it knows; whatever is left over gets listed.
"""

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from tollkeeper.providers.presets import PRESETS
from tollkeeper.setup.settings.origins import toml
from tollkeeper.setup.settings.places import SettingsError

_VARIABLE = "os.environ/"
_ALTERNATIVES_MAX = 16
# LiteLLM's order: the first that is there is the weight.
_WEIGHTS = ("weight", "rpm", "tpm")
# Texts that mean "no value" in YAML, and placeholders for servers that don't check keys.
_NO_VALUE = ("", "null", "~", "none")
_NO_KEYS = (*_NO_VALUE, "empty", "fake", "fake-key", "dummy")
# LiteLLM has its own list of limits, so configurations rarely have any.
_PLACEHOLDERS = {"context_length": 8192, "max_output_length": 4096}


class _Provider(NamedTuple):
    preset: str = ""
    # The variable that LiteLLM reads if the configuration has no key.
    key_env: str = ""
    # What LiteLLM appends to the configured address, or the address if none is configured.
    path: str = ""
    url: str = ""


_PROVIDERS: Final = {
    **{name: _Provider(name) for name in ("openai", "gemini", "bedrock", "mistral", "groq")},
    **{name: _Provider(name) for name in ("deepseek", "xai", "openrouter", "cohere")},
    "azure": _Provider("azure", "AZURE_API_KEY", "/openai/v1"),
    "anthropic": _Provider("anthropic", path="/v1"),
    "vertex_ai": _Provider("vertex-gemini"),
    "together_ai": _Provider("together", "TOGETHERAI_API_KEY"),
    "fireworks_ai": _Provider("fireworks", "FIREWORKS_AI_API_KEY"),
    "perplexity": _Provider("perplexity", "PERPLEXITYAI_API_KEY"),
    "cohere_chat": _Provider("cohere"),
    "hosted_vllm": _Provider("vllm", "HOSTED_VLLM_API_KEY"),
    "ollama": _Provider("ollama", path="/v1"),
    "ollama_chat": _Provider("ollama", path="/v1"),
    "lm_studio": _Provider("lmstudio"),
    "llamafile": _Provider("llamacpp"),
    "cerebras": _Provider("", "CEREBRAS_API_KEY", url="https://api.cerebras.ai/v1"),
    "nvidia_nim": _Provider("", "NVIDIA_NIM_API_KEY", url="https://integrate.api.nvidia.com/v1"),
    "sambanova": _Provider("", "SAMBANOVA_API_KEY", url="https://api.sambanova.ai/v1"),
    "deepinfra": _Provider("", "DEEPINFRA_API_KEY", url="https://api.deepinfra.com/v1/openai"),
    "litellm_proxy": _Provider("", "LITELLM_PROXY_API_KEY"),
    **dict.fromkeys(("openai_like", "custom_openai", "xinference"), _Provider()),
}
# LiteLLM knows these providers without a prefix.
_BARE_NAMES = {r"gpt-|chatgpt|o[134](-|$)": "openai", "claude": "anthropic"}
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
_TIER = re.compile(r"(\w+)_above_(\d+)k_tokens")
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
# Their models have JSON output unless the configuration says otherwise.
_JSON_PRESETS = ("openai", "azure", "gemini", "vertex-gemini")
# A setting of LiteLLM, ours (`backends`: every backend's), its limits and a factor. A later row wins.
_NUMBERS: Final = (
    ("litellm_settings", "request_timeout", "limits.inference_deadline_s", 1, 86400, 1),
    ("router_settings", "timeout", "limits.inference_deadline_s", 1, 86400, 1),
    ("general_settings", "max_request_size_mb", "limits.body_bytes", 1024, 2**30, 2**20),
    ("general_settings", "database_connection_pool_limit", "database.pool_size", 2, 1000, 1),
    ("general_settings", "maximum_spend_logs_retention_period", "activity.retention_days", 1, 1e9, 1),
    ("litellm_settings", "num_retries", "backends.retries", 0, 10, 1),
    ("router_settings", "num_retries", "backends.retries", 0, 10, 1),
)  # fmt: skip
_NO_REASON = (
    "there is no such setting; docs/guides/migrating-from-litellm.md has all that are known"
)
# Why a setting isn't carried over, by the patterns of the names that share the reason.
_REASONS: Final = {
    r"temperature|top_[pk]|max_(completion_)?tokens|seed|stop|n|user|\w+_penalty|thinking|"
    r"reasoning_effort": "clients send it with each request; a model has no defaults",
    r"[rt]pm|max_parallel_requests": "projects have rate limits, deployments don't: tollkeeper limit set",
    r"(stream_)?timeout": "all calls have one deadline, limits.inference_deadline_s",
    r"budget_duration|max_\w*budget": "organizations have credit and caps: tollkeeper credit grant, cap set",
    r"allowed_fails\w*|cooldown_time|\w*cooldowns|retry_policy|\w*health_check\w*": (
        "replicas are probed and ejected without settings: docs/console.md"
    ),
    r"redis_\w+": "gateways share their state in PostgreSQL; there is no cache server",
    r"(context_window|content_policy)_fallbacks": "a model falls back for errors only",
    r"\w*callbacks?|callback_settings|set_verbose": (
        "/metrics serves Prometheus, OTEL_EXPORTER_OTLP_ENDPOINT gets traces, logs are JSON lines"
    ),
    "api_version": "the v1 address of Azure needs none",
    "base_model": "prices are declared for each model, in pricing",
    "routing_strategy": "calls are shared by weight, as with simple-shuffle",
    "cache|cache_params": "answers aren't cached; a provider's prompt cache is used and charged",
    r"\w*drop_params": "a field that a model lacks gets 501; a backend's fields can omit it",
    "guardrails": "policies judge requests and answers: docs/guides/policies.md",
    "master_key|custom_auth": "create keys with tollkeeper project-key create; LiteLLM's aren't copied",
    "database_url": "it is LiteLLM's database; create another one and set database.url",
    "alerting": "alerts are posted to a signed webhook: [alerts]",
    "environment_variables": "secrets aren't copied; set these variables for tollkeeper serve",
    "include": "included files aren't read; merge them into one file",
    r"aws_\w+": "AWS's own library finds keys and roles: set its variables",
}


class Unmapped(NamedTuple):
    setting: str
    reason: str


class _Omission(Exception):
    """A deployment that can't be converted: the setting and the reason."""


class _Deployment(NamedTuple):
    place: str
    backend: dict[str, Any]
    served: dict[str, Any]
    order: Decimal
    weights: dict[str, Decimal]
    limits: dict[str, int | None]
    offers: dict[str, list[str]]


class _Conversion:
    def __init__(self) -> None:
        self.credentials: dict[str, dict[str, Any]] = {}
        # By the names that the settings file uses, in its order.
        self.backends: dict[str, dict[str, Any]] = {}
        self.deployments: dict[str, list[_Deployment]] = {}
        self.unmapped: list[Unmapped] = []
        # The variable that replaces each secret of the configuration.
        self.variables: dict[str, str] = {}

    def omit(self, setting: str, reason: str) -> None:
        unmapped = Unmapped(_one_line(setting), _one_line(reason))
        # An alias is converted from the same deployments as its model.
        if unmapped not in self.unmapped:
            self.unmapped.append(unmapped)

    def omit_all(self, prefix: str, names: Mapping[str, Any]) -> None:
        for name in names:
            fits = (reason for names, reason in _REASONS.items() if re.fullmatch(names, name))
            self.omit(prefix + name, next(fits, _NO_REASON))

    def add(self, place: str, entry: Mapping[str, Any]) -> None:
        at, name = f"{place}.litellm_params", _text(entry.get("model_name"), f"{place}.model_name")
        parameters = _section(entry.get("litellm_params"), at)
        model = _text(parameters.pop("model", None), f"{at}.model")
        shared = str(parameters.pop("litellm_credential_name", ""))
        if shared and shared not in self.credentials:
            raise SettingsError(f"{place}: credential_list has no {shared!r}")
        parameters = {**self.credentials.get(shared, {}), **parameters}
        info = _section(entry.get("model_info", {}), f"{place}.model_info")
        mode = info.pop("mode", "chat")
        for unused in ("id", "version", "description", "db_model"):
            info.pop(unused, None)
        if "*" in name + model or mode not in ("chat", "completion", "responses"):
            served = "wildcards" if "*" in name + model else f"models for {mode}"
            self.omit(f"{place} ({name})", f"{served} aren't served; declare each model by itself")
            return
        try:
            backend, upstream = self._backend(at, model, parameters)
        except _Omission as omission:
            self.omit(*omission.args)
            return
        order = _number(parameters.pop("order", "0")) or Decimal()
        numbers = {setting: _number(parameters.get(setting)) for setting in _WEIGHTS}
        weights = {setting: number for setting, number in numbers.items() if number is not None}
        parameters.pop("weight", None)
        priced = {"upstream_model": upstream, **self._prices(f"{at} ({name})", info, parameters)}
        limits = self._limits(place, info)
        offers = _offers(info, str(backend.get("preset")))
        made = _Deployment(place, backend, priced, order, weights, limits, offers)
        self.deployments.setdefault(name, []).append(made)
        self.omit_all(f"{at}.", parameters)
        self.omit_all(f"{place}.model_info.", info)

    def _backend(self, at: str, model: str, given: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """The settings of a backend, and the model's name there."""
        prefix, slash, name = model.partition("/")
        bare = (provider for names, provider in _BARE_NAMES.items() if re.match(names, model))
        known = prefix if slash and prefix in _PROVIDERS else next(bare, "")
        known = str(given.pop("custom_llm_provider", known))
        if known not in _PROVIDERS:
            shown = _one_line(repr(known or prefix))
            raise _Omission(f"{at}.model", f"{shown} is not a known provider")
        provider, upstream = _PROVIDERS[known], name if slash and prefix == known else model
        preset, settings = provider.preset, dict[str, Any]()
        if known == "vertex_ai":
            preset = "vertex" if "claude" in upstream else preset
            url = _vertex_url(at, preset, given)
            if file := given.pop("vertex_credentials", None):
                settings["identity"] = {"file": str(file)}
        elif known == "bedrock":
            url, upstream = _bedrock_url(given, upstream)
            if "api_key" not in given:
                settings["credential"] = "sigv4"
                if profile := given.pop("aws_profile_name", None):
                    settings["identity"] = {"profile": str(profile)}
        else:
            url = _url(at, provider, given)
            # `openai/` with another address is any server that speaks OpenAI's protocol.
            preset = "" if known == "openai" and url and "api.openai.com" not in url else preset
        if not url and not (preset and PRESETS[preset].url):
            raise _Omission(f"{at}.api_base", f"the address of {known} is missing and not known")
        if url and not url.startswith(("http://", "https://")):
            raise _Omission(f"{at}.api_base", "it is not an address with http:// or https://")
        address = {"preset": preset} if preset else {}
        key = self._key(at, provider, preset, given)
        headers = self._headers(at, given)
        return {
            **address,
            **({"urls": [url]} if url else {}),
            **key,
            **settings,
            **headers,
        }, upstream

    def _key(
        self, at: str, provider: _Provider, preset: str, given: dict[str, Any]
    ) -> dict[str, str]:
        key = str(given.pop("api_key", ""))
        usual = PRESETS[preset].key_env if preset else ""
        if key.startswith(_VARIABLE):
            variable = key.removeprefix(_VARIABLE)
        elif not key:
            # A preset without a variable checks no key, or uses an identity.
            variable = "" if preset and not usual else provider.key_env
        elif key.lower() in _NO_KEYS:
            variable = ""
        else:
            base = usual or provider.key_env or "BACKEND_API_KEY"
            names = (base if number == 1 else f"{base}_{number}" for number in count(1))
            free = next(name for name in names if name not in self.variables.values())
            variable = self.variables.setdefault(key, free)
            self.omit(f"{at}.api_key", f"a secret isn't copied; put it into {variable}")
        return {"api_key_env": variable} if variable and variable != usual else {}

    def _headers(self, at: str, given: dict[str, Any]) -> dict[str, Any]:
        extra = _section(given.pop("extra_headers", {}), f"{at}.extra_headers")
        headers = {name.lower(): str(value) for name, value in extra.items()}
        if isinstance(given.get("organization"), str):
            headers["openai-organization"] = given.pop("organization")
        variables = {name for name, value in headers.items() if value.startswith(_VARIABLE)}
        for name in sorted(variables):
            self.omit(f"{at}.extra_headers.{name}", "a header's value can't be a variable")
        kept = {name: value for name, value in headers.items() if name not in variables}
        return {"headers": kept} if kept else {}

    def _prices(self, place: str, *sources: dict[str, Any]) -> dict[str, Any]:
        plain: dict[str, str] = {}
        tiers: dict[int, dict[str, str]] = {}
        for source in sources:
            for setting in [*source]:
                tier = _TIER.fullmatch(setting)
                dimension = _PRICES.get(tier[1] if tier else setting)
                number = _number(source[setting])
                if dimension and number is not None:
                    into = tiers.setdefault(int(tier[2]) * 1000, {}) if tier else plain
                    into[dimension] = f"{number.normalize():f}"
                    del source[setting]
        if not plain:
            reason = "it has no price per token, so calls cost nothing until you declare pricing"
            self.omit(place, f"{reason}; tollkeeper model import shows public prices")
        # A tier needs all prices.
        every = [
            {"above_tokens": above, "pricing": {**plain, **tiers[above]}} for above in sorted(tiers)
        ]
        return {"pricing": plain, "price_tiers": every}

    def _limits(self, place: str, info: dict[str, Any]) -> dict[str, int | None]:
        context = _number(info.pop("max_input_tokens", None))
        output = _number(info.pop("max_output_tokens", info.pop("max_tokens", None)))
        if context is None or output is None:
            shown = " and ".join(f"{name} {limit}" for name, limit in _PLACEHOLDERS.items())
            reason = f"it is missing: {shown} are placeholders if no deployment has a value"
            self.omit(f"{place}.model_info.max_input_tokens", reason)
        found = {"context_length": context, "max_output_length": output}
        return {name: int(limit) if limit else None for name, limit in found.items()}

    def models(self, sections: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """The models. After a model's own deployments come those of its fallbacks, which are other
        models in LiteLLM."""
        fallbacks, default = dict[str, list[str]](), list[str]()
        for at in ("litellm_settings", "router_settings"):
            for entry in _entries(sections[at].pop("fallbacks", []), f"{at}.fallbacks"):
                fallbacks |= {name: _names(to, f"{at}.fallbacks") for name, to in entry.items()}
            default += _names(sections[at].pop("default_fallbacks", []), f"{at}.default_fallbacks")
        for name in sorted({*default, *(to for each in fallbacks.values() for to in each)}):
            if name not in self.deployments:
                self.omit(f"fallbacks ({name})", "this model is not in the file")
        place = "router_settings.model_group_alias"
        aliases = _section(sections["router_settings"].pop("model_group_alias", {}), place)
        targets = {name: name for name in self.deployments}
        for alias, to in aliases.items():
            target = str(to.get("model") if isinstance(to, Mapping) else to)
            if target in self.deployments:
                targets[alias] = target
            else:
                self.omit(f"model_group_alias.{alias}", "the alias's model is not in the file")
        models = []
        for name, target in targets.items():
            others = fallbacks.get(name, fallbacks.get(target, default))
            known = (other for other in others if other != target and other in self.deployments)
            models.append(self._model(name, [target, *known]))
        return models

    def _model(self, name: str, groups: Sequence[str]) -> dict[str, Any]:
        """`groups` are LiteLLM's names of the model and its fallbacks."""
        ranked = [
            ((position, one.order), one)
            for position, group in enumerate(groups)
            for one in sorted(self.deployments[group], key=lambda one: one.order)
        ]
        ranks = sorted({rank for rank, _ in ranked})
        weights: list[float] = []
        for rank in ranks:
            weights += self._relative_weights(name, [one for of, one in ranked if of == rank])
        if len(ranked) > _ALTERNATIVES_MAX + 1:
            kept = f"only {_ALTERNATIVES_MAX + 1} of its deployments are used"
            self.omit(f"model_list ({name})", kept)
        served: list[dict[str, Any]] = []
        for rank, one in ranked[: _ALTERNATIVES_MAX + 1]:
            backend = self._backend_name(one.backend, [other["backend"] for other in served])
            place = {"order": ranks.index(rank), "weight": weights[len(served)]}
            served.append({"backend": backend, **place, **one.served})
        first = {key: value for key, value in served[0].items() if key not in ("order", "weight")}
        return {
            "id": name,
            **first,
            **self._largest(name, [one for (position, _), one in ranked if position == 0], ranked),
            **self._common(name, [one for _, one in ranked]),
            "supported_sampling_parameters": ["temperature", "top_p", "stop"],
            "alternatives": served[1:],
        }

    def _largest(self, name: str, own: Sequence[_Deployment], ranked: Any) -> dict[str, int]:
        """The largest limits of a model's own deployments: a fallback is another model, and a missing
        limit isn't a small one. Lists deployments with less, because a call that needs more fails."""
        context, output = (
            max((limit for one in own if (limit := one.limits[key]) is not None), default=None)
            for key in _PLACEHOLDERS
        )
        context = context or max(_PLACEHOLDERS["context_length"], output or 0)
        output = min(output or _PLACEHOLDERS["max_output_length"], context)
        limits = {"context_length": context, "max_output_length": output}
        for _, one in ranked:
            for key, limit in limits.items():
                if (has := one.limits[key] or limit) < limit:
                    reason = f"for {name} {limit}, and calls that need more than this fail here"
                    self.omit(f"{one.place}.model_info ({key} = {has})", f"{key} is {reason}")
        return limits

    def _relative_weights(self, name: str, equals: Sequence[_Deployment]) -> list[float]:
        """Divided by the first weight, because a model's own backend has weight 1."""
        for setting in _WEIGHTS:
            if all(one.weights.get(setting) for one in equals):
                first = equals[0].weights[setting]
                shares = (float(one.weights[setting] / first) for one in equals)
                return [min(max(share, 1e-6), 1e6) for share in shares]
        if len(equals) > 1 and any(one.weights for one in equals):
            places = ", ".join(one.place for one in equals)
            reason = f"not all of {places} have a positive {' or '.join(_WEIGHTS)}: each gets 1"
            self.omit(f"weights ({name})", reason)
        return [1] * len(equals)

    def _common(self, name: str, every: Sequence[_Deployment]) -> dict[str, list[str]]:
        """What all deployments offer: one could silently ignore what it doesn't support."""
        common = {}
        for setting, offered in every[0].offers.items():
            common[setting] = [x for x in offered if all(x in one.offers[setting] for one in every)]
            if lacking := [x for x in offered if x not in common[setting]]:
                reason = "not all of its deployments and fallbacks declare this"
                self.omit(f"{setting} ({name})", f"{', '.join(lacking)}: {reason}")
        return common

    def _backend_name(self, settings: dict[str, Any], used: Sequence[str]) -> str:
        """A model names a backend only once: its second deployment with the same settings gets another."""
        base = str(settings.get("preset") or "server")
        names = (base if number == 1 else f"{base}-{number}" for number in count(1))
        free = (name for name in names if name not in used)
        return next(name for name in free if self.backends.setdefault(name, settings) == settings)

    def sections(self, found: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        # The clients may use LiteLLM's SDK.
        converted: dict[str, dict[str, Any]] = {
            "conventions": {"accept_provider_specific_fields": True},
            "extensions": {"model_listing": True, "messages": True},
        }
        for at, name, ours, lowest, highest, factor in _NUMBERS:
            number = _number(str(found[at].get(name)).removesuffix("d"))
            if number is not None and (number or not lowest):
                del found[at][name]
                section, _, setting = ours.partition(".")
                value = min(max(int(number * factor), int(lowest)), int(highest))
                converted.setdefault(section, {})[setting] = value
        of_backends = converted.pop("backends", {})
        for backend in self.backends.values():
            backend.update(of_backends)
        if found["router_settings"].get("routing_strategy") == "simple-shuffle":
            del found["router_settings"]["routing_strategy"]
        found["litellm_settings"].pop("json_logs", None)
        for at, settings in found.items():
            self.omit_all(f"{at}.", settings)
        return converted


def convert(path: Path) -> tuple[str, tuple[Unmapped, ...]]:
    """Returns the settings file, and what isn't carried over. Raises SettingsError if the configuration
    can't be read or has no model that can be converted."""
    document = _section(_read(path), "the file")
    conversion = _Conversion()
    for entry in _entries(document.pop("credential_list", []), "credential_list"):
        values = _section(entry.get("credential_values"), "credential_list")
        conversion.credentials[str(entry.get("credential_name"))] = values
    for position, entry in enumerate(_entries(document.pop("model_list", None), "model_list")):
        conversion.add(f"model_list[{position}]", entry)
    if not conversion.deployments:
        reasons = "; ".join(": ".join(omitted) for omitted in conversion.unmapped)
        raise SettingsError(
            f"{path}: no model can be converted: {reasons or 'model_list is empty'}"
        )
    names = ("router_settings", "litellm_settings", "general_settings")
    found = {name: _section(document.pop(name, {}), name) for name in names}
    models = conversion.models(found)
    sections = conversion.sections(found)
    conversion.omit_all("", document)
    tables = [
        *((f"[{name}]", settings) for name, settings in sections.items()),
        *(
            ("[[backends]]", {"name": name, **settings})
            for name, settings in conversion.backends.items()
        ),
    ]
    for model in models:
        alternatives = model.pop("alternatives")
        tables += [
            ("[[models]]", model),
            *(("[[models.alternatives]]", one) for one in alternatives),
        ]
    lines = [
        "# Converted from the configuration of a LiteLLM proxy. docs/guides/migrating-from-litellm.md",
        "# explains each line. These settings have no equivalent, or need your attention:",
        "#",
        *(
            [f"# {omitted.setting}: {omitted.reason}" for omitted in conversion.unmapped]
            or ["# (none)"]
        ),
    ]
    for header, settings in tables:
        given = (
            f"{name} = {toml(value)}" for name, value in settings.items() if value not in ({}, [])
        )
        lines += ["", header, *given]
    return "\n".join(lines) + "\n", tuple(conversion.unmapped)


def _read(path: Path) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise SettingsError("PyYAML is not installed; install tollkeeper[litellm].") from None

    class TextLoader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """Reads every scalar as text, because a price as a float isn't exact."""

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


def _url(at: str, provider: _Provider, given: dict[str, Any]) -> str:
    """The address, or "" if neither the configuration nor the provider has one."""
    address = str(given.pop("api_base", given.pop("base_url", "")))
    if address.startswith(_VARIABLE):
        variable = address.removeprefix(_VARIABLE)
        address = os.environ.get(variable, "")
        if not address:
            missing = f"set the variable {_one_line(variable)} and repeat: an address is needed"
            raise _Omission(f"{at}.api_base", missing)
    base = address.rstrip("/")
    return base.removesuffix(provider.path) + provider.path if base else provider.url


def _vertex_url(at: str, preset: str, given: dict[str, Any]) -> str:
    project, region = (str(given.pop(f"vertex_{part}", "")) for part in ("project", "location"))
    if not project or not region or _VARIABLE in project + region:
        reason = "the address needs the project and the location as text"
        raise _Omission(f"{at}.vertex_project", reason)
    host = "aiplatform" if region == "global" else f"{region}-aiplatform"
    form = PRESETS[preset].address_form.replace("REGION-aiplatform", host)
    return form.replace("PROJECT", project).replace("REGION", region)


def _bedrock_url(given: dict[str, Any], model: str) -> tuple[str, str]:
    """The address, and the model's name without LiteLLM's prefixes."""
    region = str(given.pop("aws_region_name", ""))
    name = re.sub(r"^(converse|invoke|converse_like)/", "", model)
    if parted := re.fullmatch(r"([a-z]{2}(?:-[a-z]+)+-\d)/(.+)", name):
        region, name = parted[1], parted[2]
    if not region or region.startswith(_VARIABLE):
        region = os.environ.get(region.removeprefix(_VARIABLE) or "AWS_REGION", "us-east-1")
    address = PRESETS["bedrock"].address_form.replace("REGION", region)
    return str(given.pop("aws_bedrock_runtime_endpoint", address)), name


def _offers(info: dict[str, Any], preset: str) -> dict[str, list[str]]:
    says = {name: str(info.pop(name, "")).lower() for name in (*_FEATURES, *_MODALITIES)}
    usual = {"tools", *(("json_mode", "structured_outputs") if preset in _JSON_PRESETS else ())}
    usual |= {feature for name, feature in _FEATURES.items() if says[name] == "true"}
    usual -= {feature for name, feature in _FEATURES.items() if says[name] == "false"}
    others = [modality for name, modality in _MODALITIES.items() if says[name] == "true"]
    return {"input_modalities": ["text", *others], "supported_features": sorted(usual)}


def _section(value: Any, place: str) -> dict[str, Any]:
    value = {} if _is_empty(value) else value
    if not isinstance(value, dict):
        raise SettingsError(f"{_one_line(place)} must be a mapping of names to values")
    return {str(name): inner for name, inner in value.items()}


def _entries(value: Any, place: str) -> list[dict[str, Any]]:
    value = [] if _is_empty(value) else value
    if not isinstance(value, list):
        raise SettingsError(f"{place} must be a list")
    return [_section(entry, f"{place}[{at}]") for at, entry in enumerate(value)]


def _is_empty(value: Any) -> bool:
    return isinstance(value, str) and value.lower() in _NO_VALUE


def _names(value: Any, place: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise SettingsError(f"{place} must be a list of model names")
    return value


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
