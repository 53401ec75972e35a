"""Builds the backends from the settings, and the judge (the model that answers policy questions), which
uses one of the backends."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from tollkeeper.backends.absent import AbsentBackend
from tollkeeper.backends.config import (
    NO_BILLING_RULES,
    BackendConfig,
    OutputLimitField,
    Tokenizer,
    WireProtocol,
)
from tollkeeper.backends.credentials import read_key
from tollkeeper.backends.fan_out import FanOutBackend
from tollkeeper.backends.port import Backend
from tollkeeper.backends.presets import PRESETS
from tollkeeper.backends.routing import RoutedBackend
from tollkeeper.bootstrap.identities import identity_of
from tollkeeper.bootstrap.secrets import secret_variable
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.declared_prices import pricing_from_declared
from tollkeeper.domain.judging import EXAMPLES, Example
from tollkeeper.embedded.engine_address import EngineAddress
from tollkeeper.services.policies.checks import FirstJudge
from tollkeeper.services.policies.judge import Judge, JudgeConfig
from tollkeeper.services.vault import Vault
from tollkeeper.settings import BackendSettings, JudgeSettings, Settings, SettingsError, built_from
from tollkeeper.settings.backends import CACHE_SALT

# The protocols without a request that counts the tokens of a prompt.
_WITHOUT_TOKEN_COUNT = frozenset({WireProtocol.CHAT, WireProtocol.RESPONSES})
# If the gateway sends a call for `n` completions as `n` calls, at most this many run at the same time.
_PARTS_AT_ONCE = 16
# The value of `top_logprobs` in calls to the judge. The chat protocol allows at most 20. The embedded engine
# has no limit.
_JUDGE_ALTERNATIVES = 20
_JUDGE_ALTERNATIVES_EMBEDDED = 200
# The embedded engine answers one judge question at a time, because its slots (contexts of running calls)
# cannot reuse each other's computations. Eight questions about the same half page took 21 s one after the
# other, 42 s two at a time and 51 s four at a time.
_JUDGE_CONCURRENCY_EMBEDDED = 1


def build_judge(
    settings: Settings,
    backends: dict[str, Backend],
    secret: bytes,
    examples: tuple[Example, ...] = EXAMPLES,
) -> Judge | None:
    declared = settings.judge
    if declared is None:
        return None
    return _judge(settings, declared, backends, secret, declared.backend, declared.model, examples)


def build_first_judge(
    settings: Settings, backends: dict[str, Backend], secret: bytes
) -> FirstJudge | None:
    """Builds the first judge, a small model that is asked before the main judge. Returns None if the settings
    declare none."""
    declared = settings.judge
    if declared is None or not declared.first.backend:
        return None
    first = declared.first
    judge = _judge(settings, declared, backends, secret, first.backend, first.model, EXAMPLES)
    return FirstJudge(judge, first.settles_below_basis_points)


def _judge(
    settings: Settings,
    declared: JudgeSettings,
    backends: dict[str, Backend],
    secret: bytes,
    backend_name: str,
    model: str,
    examples: tuple[Example, ...],
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
    )


def judge_secret(vault: Vault) -> bytes:
    """Returns the secret from which the delimiters around texts in judge prompts are computed. All
    processes have the same secret."""
    return vault.derive("judge")


def _judge_model(backend: BackendSettings, upstream_model: str) -> Model:
    """Describes the judge's model. The model has no price, and is not in the catalogue, so clients cannot
    call it."""
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
        # The engine creates one completion in each call. It has `embedded.parallel` slots for
        # concurrent calls.
        return FanOutBackend(routed, concurrency=settings.embedded.parallel)
    if declared.native_n and declared.protocol is WireProtocol.CHAT:
        return routed
    # Only the chat protocol has the field `n` for every model and for streams. On other protocols, the
    # gateway makes one call for each completion.
    return FanOutBackend(routed, concurrency=_PARTS_AT_ONCE)


def backend_config(declared: BackendSettings, engine: EngineAddress | None) -> BackendConfig:
    """Builds the configuration of a backend. Raises ValueError if an address or a credential cannot be
    used."""
    embedded = declared.kind == "embedded"
    access = _access(declared, engine)
    preset = PRESETS.get(declared.preset)
    # `declared.fields` maps a request field to the backend's name for the field, to False (the field is
    # rejected) or to "" (the field is omitted). A name for the cache salt is left out, because clients must
    # not choose the salt: the gateway itself writes the salt into each request.
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
        # Makes the engine report progress while it processes a long prompt. Without these reports, the engine
        # would notice a disconnect of the gateway only after it has processed the whole prompt.
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
    """Returns the field to which the settings rename a field for the output limit. Returns CALLER if
    they rename neither field."""
    renamed = [declared.fields.get(name) for name in ("max_tokens", "max_completion_tokens")]
    return next(
        (bound for bound in OutputLimitField if bound.value in renamed),
        OutputLimitField.SAME_AS_CLIENT,
    )


def _tokenizer(declared: BackendSettings) -> Tokenizer:
    """Returns the kind of request with which the backend counts tokens, or NONE if it has no such request."""
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
    """Contains the URLs of a backend's replicas, the API key, and the file that contains the key, if any."""

    urls: tuple[str, ...]
    api_key: str | None = field(repr=False)


def _access(declared: BackendSettings, engine: EngineAddress | None) -> _Access:
    if declared.kind == "embedded":
        return _Access((), None) if engine is None else _Access((engine.base_url,), engine.api_key)
    return _Access(declared.urls, api_key_of(declared))


def api_key_of(declared: BackendSettings) -> str | None:
    """Returns the backend's API key, or None if the backend needs none. Raises SettingsError if the key
    cannot be read."""
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
