"""Builds the backends, and the judge, which uses one of them."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from tollkeeper.core.catalog import Model
from tollkeeper.core.declared_prices import pricing_from_declared
from tollkeeper.core.port import Backend
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.policies.checks import FirstJudge
from tollkeeper.policies.judge.judge import Judge, JudgeConfig, JudgeMeter, unmetered
from tollkeeper.policies.judge.rule import EXAMPLES, Example
from tollkeeper.providers.absent import AbsentBackend
from tollkeeper.providers.config import (
    NO_BILLING_RULES,
    BackendConfig,
    OutputLimitField,
    Tokenizer,
    WireProtocol,
)
from tollkeeper.providers.credentials import read_key
from tollkeeper.providers.fan_out import FanOutBackend
from tollkeeper.providers.presets import PRESETS
from tollkeeper.providers.routing import RoutedBackend
from tollkeeper.setup.embedded.engine_address import EngineAddress
from tollkeeper.setup.identities import identity_of
from tollkeeper.setup.secrets import secret_variable
from tollkeeper.setup.settings import (
    BackendSettings,
    JudgeSettings,
    Settings,
    SettingsError,
    built_from,
)
from tollkeeper.setup.settings.backends import CACHE_SALT

# They have no request that counts tokens.
_WITHOUT_TOKEN_COUNT = frozenset({WireProtocol.CHAT, WireProtocol.RESPONSES})
# Of a call for `n` completions that is sent as `n` calls.
_PARTS_AT_ONCE = 16
# `top_logprobs`: chat allows at most 20, the embedded engine any number.
_JUDGE_ALTERNATIVES = 20
_JUDGE_ALTERNATIVES_EMBEDDED = 200
# The engine's slots can't reuse each other's computations: eight questions about half a page took 21 s one
# after the other, 42 s two at a time and 51 s four at a time.
_JUDGE_CONCURRENCY_EMBEDDED = 1


def build_judge(
    settings: Settings,
    backends: dict[str, Backend],
    secret: bytes,
    examples: tuple[Example, ...] = EXAMPLES,
    meter: JudgeMeter = unmetered,
) -> Judge | None:
    declared = settings.judge
    if declared is None:
        return None
    names = declared.backend, declared.model
    return _judge(settings, declared, backends, secret, *names, examples, meter)


def build_first_judge(
    settings: Settings, backends: dict[str, Backend], secret: bytes, meter: JudgeMeter
) -> FirstJudge | None:
    """None if the settings declare none."""
    declared = settings.judge
    if declared is None or not declared.first.backend:
        return None
    first = declared.first
    names = first.backend, first.model
    judge = _judge(settings, declared, backends, secret, *names, EXAMPLES, meter)
    return FirstJudge(judge, first.settles_below_basis_points)


def _judge(
    settings: Settings,
    declared: JudgeSettings,
    backends: dict[str, Backend],
    secret: bytes,
    backend_name: str,
    model: str,
    examples: tuple[Example, ...],
    meter: JudgeMeter,
) -> Judge:
    (backend,) = (found for found in settings.backends if found.name == backend_name)
    embedded = backend.kind == "embedded"
    return Judge(
        backends[backend_name],
        _judge_model(backend, model),
        secret,
        JudgeConfig(
            deadline_s=declared.deadline_s,
            concurrency=_JUDGE_CONCURRENCY_EMBEDDED if embedded else declared.concurrency,
            top_logprobs=_JUDGE_ALTERNATIVES_EMBEDDED if embedded else _JUDGE_ALTERNATIVES,
            context_characters=settings.policy.answer_context_characters,
            examples=examples,
        ),
        meter,
    )


def judge_secret(vault: Vault) -> bytes:
    """For the delimiters around texts in judge prompts. The same in all processes."""
    return vault.derive("judge")


def _judge_model(backend: BackendSettings, upstream_model: str) -> Model:
    """Without a price and not in the catalogue, so clients can't call it."""
    return Model(
        id=f"judge/{upstream_model}",
        backend=backend.name,
        upstream_model=upstream_model,
        context_length=1,
        max_output_length=1,
        pricing=pricing_from_declared({}, param="judge"),
        cache_salt_field=backend.cache_salt_field,
    )


def build_backends(settings: Settings, engine: EngineAddress | None) -> dict[str, Backend]:
    return {declared.name: _backend(declared, settings, engine) for declared in settings.backends}


def _backend(
    declared: BackendSettings, settings: Settings, engine: EngineAddress | None
) -> Backend:
    if declared.kind == "embedded" and engine is None:
        return AbsentBackend(declared.name, "The embedded engine does not run.")
    try:
        config = backend_config(declared, engine)
        routed: Backend = RoutedBackend(config)
    except ValueError as exc:
        raise SettingsError(str(exc), ("backends", declared.name)) from None
    if declared.kind == "embedded":
        # The engine creates one completion in each call.
        return FanOutBackend(routed, concurrency=settings.embedded.parallel)
    if declared.native_n and declared.protocol is WireProtocol.CHAT:
        return routed
    # Only chat has `n` for every model and for streams.
    return FanOutBackend(routed, concurrency=_PARTS_AT_ONCE)


def backend_config(declared: BackendSettings, engine: EngineAddress | None) -> BackendConfig:
    """Raises ValueError if an address or a credential can't be used."""
    embedded = declared.kind == "embedded"
    access = _access(declared, engine)
    preset = PRESETS.get(declared.preset)
    # A name for the cache salt is left out: clients mustn't choose the salt, which the gateway writes itself.
    fields = {
        name: setting
        for name, setting in declared.fields.items()
        if name != CACHE_SALT or not setting
    }
    return built_from(
        declared,
        BackendConfig,
        urls=access.urls,
        api_key_file="" if embedded else declared.api_key_file,
        api_key=access.api_key,
        identity=None if embedded else identity_of(declared),
        always_stream=embedded,
        # Without progress reports, the engine would notice that the gateway has gone only after the whole
        # prompt.
        extra_fields={"return_progress": True} if embedded else {},
        output_limit_field=_output_limit_field(declared),
        include_usage=fields.get("stream_options") != "",
        refused_fields=tuple(name for name, other in fields.items() if other is False),
        renamed_fields={name: other for name, other in fields.items() if other},
        omitted_fields=tuple(name for name, other in fields.items() if other == ""),
        takes_reasoning_text=preset is None or preset.takes_reasoning_text,
        tokenizer=_tokenizer(declared),
        connections_max=declared.connections,
        billing_rules=replace(
            preset.billing_rules if preset else NO_BILLING_RULES,
            cache_adds_to_prompt=declared.cache_adds_to_prompt,
        ),
    )


def _output_limit_field(declared: BackendSettings) -> OutputLimitField:
    """The field to which one of the two is renamed, if any."""
    renamed = [declared.fields.get(name) for name in ("max_tokens", "max_completion_tokens")]
    return next(
        (bound for bound in OutputLimitField if bound.value in renamed),
        OutputLimitField.SAME_AS_CLIENT,
    )


def _tokenizer(declared: BackendSettings) -> Tokenizer:
    if declared.kind == "embedded":
        return Tokenizer.LLAMA_CPP
    if declared.tokenize_path == "none":
        return Tokenizer.NONE
    preset_tokenizer = PRESETS[declared.preset].tokenizer if declared.preset else None
    if preset_tokenizer is not None or declared.protocol not in _WITHOUT_TOKEN_COUNT:
        return preset_tokenizer or Tokenizer.PROTOCOL
    return Tokenizer.VLLM if declared.tokenize_path else Tokenizer.NONE


@dataclass(frozen=True, slots=True)
class _Access:
    urls: tuple[str, ...]
    api_key: str | None = field(repr=False)


def _access(declared: BackendSettings, engine: EngineAddress | None) -> _Access:
    if declared.kind == "embedded":
        return _Access((), None) if engine is None else _Access((engine.base_url,), engine.api_key)
    return _Access(declared.urls, api_key_of(declared))


def api_key_of(declared: BackendSettings) -> str | None:
    """None if none is needed. Raises SettingsError if it can't be read."""
    if declared.api_key_env:
        at = ("backends", declared.name, "api_key_env")
        return secret_variable(declared.api_key_env, at)
    if declared.api_key_file:
        try:
            return read_key(Path(declared.api_key_file))
        except ValueError as exc:
            at = ("backends", declared.name, "api_key_file")
            raise SettingsError(f"{declared.api_key_file}: {exc}.", at) from None
    return None
