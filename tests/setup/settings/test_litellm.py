"""Tests that a LiteLLM configuration is converted to valid settings, and that values without an
equivalent are listed."""

import sys
import tomllib
from pathlib import Path

import pytest

from tollkeeper.setup import build_catalog
from tollkeeper.setup.settings import Settings, load_settings
from tollkeeper.setup.settings.litellm import convert
from tollkeeper.setup.settings.places import SettingsError

_WHOLE = """
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: azure/gpt-4o-eu
      api_base: https://europe.openai.azure.com/
      api_key: os.environ/AZURE_KEY_EU
      api_version: "2024-02-01"
      rpm: 600
      input_cost_per_token: 2.5e-06
      output_cost_per_token: 0.00001
    model_info: {max_input_tokens: 128000, max_output_tokens: 16384, supports_vision: true}
  - model_name: gpt-4o
    litellm_params:
      model: azure/gpt-4o-ca
      api_base: https://canada.openai.azure.com/
      api_key: os.environ/AZURE_KEY_CA
      rpm: 200
      input_cost_per_token: 2.75e-06
      output_cost_per_token: 0.000011
    model_info: {max_input_tokens: 128000, max_output_tokens: 16384, supports_vision: true}
  - model_name: claude
    litellm_params:
      model: anthropic/claude-sonnet-4-5
      api_key: sk-ant-very-secret
      max_tokens: 1024
      input_cost_per_token: 0.000003
      output_cost_per_token: 0.000015
      cache_read_input_token_cost: 3e-7
      cache_creation_input_token_cost: 3.75e-6
      input_cost_per_token_above_200k_tokens: 0.000006
      output_cost_per_token_above_200k_tokens: 0.0000225
    model_info: {max_input_tokens: 200000, max_output_tokens: 64000}
  - model_name: llama
    litellm_params:
      model: openai/meta/llama-4
      api_base: http://10.0.0.5:8000/v1
      api_key: none
      extra_headers: {X-Team: search}
      organization: org-1
  - model_name: bedrock
    litellm_params: {model: bedrock/eu-west-1/anthropic.claude-v2, aws_access_key_id: AKIASECRET}
    model_info: {max_tokens: 4096}
  - model_name: vertex
    litellm_params:
      model: vertex_ai/gemini-2.5-pro
      vertex_project: acme
      vertex_location: europe-west1
      vertex_credentials: account.json
  - model_name: "*"
    litellm_params: {model: "*"}
  - model_name: embed
    litellm_params: {model: openai/text-embedding-3-small}
    model_info: {mode: embedding}
  - model_name: odd
    litellm_params: {model: sagemaker/endpoint}
litellm_settings:
  drop_params: True
  request_timeout: 120
  num_retries: 3
  json_logs: true
  success_callback: [langfuse]
router_settings:
  routing_strategy: usage-based-routing
  fallbacks: [{claude: [gpt-4o, llama]}]
  model_group_alias: {gpt-4: gpt-4o}
  redis_password: hunter2
general_settings:
  master_key: sk-1234
  database_url: postgresql://litellm:password@db/litellm
  database_connection_pool_limit: 20
  maximum_spend_logs_retention_period: 14d
environment_variables: {SECRET: swordfish}
guardrails: [{guardrail_name: pii}]
"""
_SECRETS = ("sk-ant", "AKIA", "hunter2", "sk-1234", "password@", "swordfish")


def _converted(text: str, folder: Path) -> tuple[str, dict[str, str]]:
    file = folder / "config.yaml"
    file.write_text(text)
    written, unmapped = convert(file)
    return written, {one.setting: one.reason for one in unmapped}


def _loaded(text: str, folder: Path) -> Settings:
    file = folder / "tollkeeper.toml"
    file.write_text(text)
    settings = load_settings(file)
    assert len(build_catalog(settings).models) == len(settings.models)
    return settings


def test_models_and_their_backends_are_taken_over(tmp_path: Path) -> None:
    settings = _loaded(_converted(_WHOLE, tmp_path)[0], tmp_path)
    models = {model.id: model for model in settings.models}
    backends = {backend.name: backend for backend in settings.backends}
    assert list(models) == ["gpt-4o", "claude", "llama", "bedrock", "vertex", "gpt-4"]
    shared = models["gpt-4o"]
    assert shared.alternatives[0].weight == 200 / 600
    assert [alternative.order for alternative in shared.alternatives] == [0]
    europe, canada = (backends[name] for name in shared.backends)
    assert (europe.urls, europe.api_key_env) == (
        ("https://europe.openai.azure.com/openai/v1",),
        "AZURE_KEY_EU",
    )
    assert canada.api_key_env == "AZURE_KEY_CA"
    assert shared.pricing == {"prompt": "0.0000025", "completion": "0.00001"}
    assert shared.alternatives[0].pricing == {"prompt": "0.00000275", "completion": "0.000011"}
    assert shared.input_modalities == ("text", "image")
    assert models["gpt-4"].model_copy(update={"id": "gpt-4o"}) == shared
    server = backends[models["llama"].backend]
    assert (server.preset, server.urls, server.api_key_env) == (
        "",
        ("http://10.0.0.5:8000/v1",),
        "",
    )
    assert server.headers == {"x-team": "search", "openai-organization": "org-1"}
    bedrock = backends[models["bedrock"].backend]
    assert bedrock.urls == ("https://bedrock-runtime.eu-west-1.amazonaws.com",)
    assert bedrock.credential == "sigv4"
    assert models["bedrock"].upstream_model == "anthropic.claude-v2"
    vertex = backends[models["vertex"].backend]
    assert "/projects/acme/locations/europe-west1/publishers/google/models" in vertex.urls[0]
    assert vertex.identity.file.endswith("account.json")


def test_prices_stay_exact_and_have_their_tiers(tmp_path: Path) -> None:
    settings = _loaded(_converted(_WHOLE, tmp_path)[0], tmp_path)
    (claude,) = [model for model in settings.models if model.id == "claude"]
    plain = {
        "prompt": "0.000003",
        "completion": "0.000015",
        "input_cache_read": "0.0000003",
        "input_cache_write": "0.00000375",
    }
    assert claude.pricing == plain
    (tier,) = claude.price_tiers
    assert tier.above_tokens == 200_000
    assert tier.pricing == {**plain, "prompt": "0.000006", "completion": "0.0000225"}


def test_fallbacks_become_alternatives_in_their_order(tmp_path: Path) -> None:
    settings = _loaded(_converted(_WHOLE, tmp_path)[0], tmp_path)
    (claude,) = [model for model in settings.models if model.id == "claude"]
    assert [other.upstream_model for other in claude.alternatives] == [
        "gpt-4o-eu",
        "gpt-4o-ca",
        "meta/llama-4",
    ]
    assert [other.order for other in claude.alternatives] == [1, 1, 2]
    # The model declares only modalities that all of its backends support.
    assert claude.input_modalities == ("text",)


def test_a_fallback_at_the_same_provider_has_a_second_backend(tmp_path: Path) -> None:
    text = """
model_list:
  - {model_name: large, litellm_params: {model: gpt-4o}}
  - {model_name: small, litellm_params: {model: openai/gpt-4o-mini}}
litellm_settings: {fallbacks: [{large: [small]}]}
"""
    settings = _loaded(_converted(text, tmp_path)[0], tmp_path)
    large, small = settings.models
    assert large.backends == ("openai", "openai-2")
    assert small.backends == ("openai",)
    assert {backend.api_key_env for backend in settings.backends} == {"OPENAI_API_KEY"}


def test_other_sections_are_taken_over(tmp_path: Path) -> None:
    settings = _loaded(_converted(_WHOLE, tmp_path)[0], tmp_path)
    assert settings.limits.inference_deadline_s == 120
    assert {backend.retries for backend in settings.backends} == {3}
    assert settings.database.pool_size == 20
    assert settings.activity.retention_days == 14
    assert settings.extensions.model_listing
    assert settings.extensions.messages
    assert settings.conventions.accept_provider_specific_fields


def test_what_has_no_equivalent_is_listed_with_its_reason(tmp_path: Path) -> None:
    text, unmapped = _converted(_WHOLE, tmp_path)
    for setting in (
        "model_list[0].litellm_params.api_version",
        "model_list[0].litellm_params.rpm",
        "model_list[2].litellm_params.max_tokens",
        "model_list[2].litellm_params.api_key",
        "model_list[3].litellm_params (llama)",
        "model_list[6] (*)",
        "model_list[7] (embed)",
        "model_list[8].litellm_params.model",
        "litellm_settings.drop_params",
        "litellm_settings.success_callback",
        "router_settings.routing_strategy",
        "router_settings.redis_password",
        "general_settings.master_key",
        "general_settings.database_url",
        "environment_variables",
        "guardrails",
    ):
        assert unmapped[setting], setting
        assert f"# {setting}: {unmapped[setting]}\n" in text
    assert "ANTHROPIC_API_KEY" in unmapped["model_list[2].litellm_params.api_key"]
    assert "calls cost nothing" in unmapped["model_list[3].litellm_params (llama)"]


def test_no_secret_is_copied(tmp_path: Path) -> None:
    text, unmapped = _converted(_WHOLE, tmp_path)
    assert [secret for secret in _SECRETS if secret in text + str(unmapped)] == []


def test_keys_that_differ_have_variables_that_differ(tmp_path: Path) -> None:
    models = "".join(
        f"  - {{model_name: m{at}, litellm_params: {{model: openai/m, api_key: {key}}}}}\n"
        for at, key in enumerate(("sk-a", "sk-b", "sk-a"))
    )
    settings = _loaded(_converted(f"model_list:\n{models}", tmp_path)[0], tmp_path)
    variables = {backend.name: backend.api_key_env for backend in settings.backends}
    assert variables == {"openai": "OPENAI_API_KEY", "openai-2": "OPENAI_API_KEY_2"}
    assert [model.backend for model in settings.models] == ["openai", "openai-2", "openai"]


def test_weights_keep_their_proportion(tmp_path: Path) -> None:
    text = """
model_list:
  - {model_name: m, litellm_params: {model: groq/a, weight: 0.9}}
  - {model_name: m, litellm_params: {model: xai/a, weight: 0.3}}
  - {model_name: m, litellm_params: {model: mistral/a, weight: 0.3, order: 2}}
"""
    (model,) = _loaded(_converted(text, tmp_path)[0], tmp_path).models
    # Only backends of the same order share calls.
    assert [other.weight for other in model.alternatives] == [1 / 3, 1]
    assert [other.order for other in model.alternatives] == [0, 1]


def test_credentials_and_anchors_are_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BASE", "http://vllm:8000/v1")
    text = """
credential_list:
  - credential_name: ours
    credential_values: {api_key: os.environ/OUR_KEY, api_base: os.environ/VLLM_BASE}
common: &common {litellm_credential_name: ours}
model_list:
  - {model_name: m, litellm_params: {<<: *common, model: hosted_vllm/qwen}}
  - {model_name: n, litellm_params: {model: hosted_vllm/qwen, api_base: os.environ/NOT_SET}}
"""
    written, unmapped = _converted(text, tmp_path)
    (backend,) = _loaded(written, tmp_path).backends
    assert (backend.preset, backend.urls, backend.api_key_env) == (
        "vllm",
        ("http://vllm:8000/v1",),
        "OUR_KEY",
    )
    assert "NOT_SET" in unmapped["model_list[1].litellm_params.api_base"]


def test_text_of_the_configuration_cannot_leave_its_string(tmp_path: Path) -> None:
    name = 'm"\\n[server]\\nport = 1 # \\x7f'
    text = f'model_list:\n  - {{model_name: "{name}", litellm_params: {{model: groq/a}}}}\n'
    text = text.replace('m"', 'm\\"')
    written, _ = _converted(text, tmp_path)
    assert tomllib.loads(written)["models"][0]["id"] == 'm"\n[server]\nport = 1 # \x7f'
    assert "server" not in tomllib.loads(written)


def test_text_of_the_configuration_cannot_leave_its_comment(tmp_path: Path) -> None:
    text = """
model_list:
  - {model_name: a, litellm_params: {model: groq/a}}
  - {model_name: b, litellm_params: {model: groq/b}, model_info: {mode: "x\\n[server]\\nport = 1"}}
"""
    written, _ = _converted(text, tmp_path)
    assert "server" not in tomllib.loads(written)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_list: [", "is not YAML at line 1"),
        ("- a", "the file must be a mapping"),
        ("general_settings: {}", "model_list must be a list"),
        ("model_list: []", "model_list is empty"),
        ("model_list: [3]", "model_list[0] must be a mapping"),
        ("model_list: [{litellm_params: {}}]", "model_list[0].model_name must be a string"),
        ("model_list: [{model_name: a}]", "model_list[0].litellm_params must be a mapping"),
        (
            "model_list: [{model_name: a, litellm_params: {}}]",
            "model_list[0].litellm_params.model must be a string",
        ),
        (
            "model_list: [{model_name: a, litellm_params: {model: sagemaker/x}}]",
            "no model can be converted: model_list[0].litellm_params.model: 'sagemaker'",
        ),
        (
            "model_list: [{model_name: a, litellm_params: {model: groq/x}}]\nrouter_settings: [1]",
            "router_settings must be a mapping",
        ),
        (
            "{model_list: [{model_name: a, litellm_params: {model: o1}}],router_settings: {fallbacks: [b: 1]}}",
            "router_settings.fallbacks must be a list of model names",
        ),
        (
            "model_list: [{model_name: a, litellm_params: {model: m, litellm_credential_name: b}}]",
            "credential_list has no 'b'",
        ),
    ],
)
def test_an_unknown_shape_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        _converted(text, tmp_path)
    assert message in str(refused.value)


def test_a_missing_parser_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(SettingsError, match=r"install tollkeeper\[litellm\]"):
        _converted("model_list: []", tmp_path)


_LIMITS = """
model_list:
  - model_name: m
    litellm_params: {model: groq/a, rpm: 500}
    model_info: {max_input_tokens: 128000, max_output_tokens: 16384, supports_vision: true}
  - model_name: m
    litellm_params: {model: xai/a, rpm: 300}
    model_info: {max_input_tokens: 32000}
  - {model_name: other, litellm_params: {model: mistral/b}}
  - model_name: tiny
    litellm_params: {model: cohere/c}
    model_info: {max_input_tokens: 4000, max_output_tokens: 1000}
litellm_settings: {fallbacks: [{m: [other, tiny]}]}
"""


def test_the_largest_limits_of_a_models_own_deployments_count(tmp_path: Path) -> None:
    """In LiteLLM, a fallback is another model, and a missing limit is not a small limit."""
    text, unmapped = _converted(_LIMITS, tmp_path)
    models = {model.id: model for model in _loaded(text, tmp_path).models}
    limits = {
        name: (model.context_length, model.max_output_length) for name, model in models.items()
    }
    assert limits == {"m": (128_000, 16_384), "other": (8192, 4096), "tiny": (4000, 1000)}
    smaller = {setting for setting in unmapped if "model_info (" in setting}
    assert smaller == {
        "model_list[1].model_info (context_length = 32000)",
        "model_list[3].model_info (context_length = 4000)",
        "model_list[3].model_info (max_output_length = 1000)",
    }
    assert "for m 128000" in unmapped["model_list[1].model_info (context_length = 32000)"]
    assert "image" in unmapped["input_modalities (m)"]
    assert "weights (m)" not in unmapped


def test_fallbacks_leave_the_weights_alone(tmp_path: Path) -> None:
    settings = _loaded(_converted(_LIMITS, tmp_path)[0], tmp_path)
    assert [other.weight for other in settings.models[0].alternatives] == [0.6, 1, 1]
    assert [other.order for other in settings.models[0].alternatives] == [0, 1, 2]


@pytest.mark.parametrize("second", ["", ", tpm: 5", ", weight: 0"])
def test_weights_that_cannot_be_compared_are_listed(tmp_path: Path, second: str) -> None:
    text = f"""
model_list:
  - {{model_name: m, litellm_params: {{model: groq/a, rpm: 500}}}}
  - {{model_name: m, litellm_params: {{model: xai/a{second}}}}}
router_settings: {{model_group_alias: {{n: m}}}}
"""
    written, unmapped = _converted(text, tmp_path)
    assert _loaded(written, tmp_path).models[0].alternatives[0].weight == 1
    assert "model_list[0], model_list[1]" in unmapped["weights (m)"]
