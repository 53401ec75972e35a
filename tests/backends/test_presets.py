"""Presets: each of them is a backend that can be built, and what it knows reaches the request."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from tests.journeys.exchanges.exchange import RECORDED
from tests.support.backend_calls import make_call
from tests.support.tables import each
from tollkeeper.backends.config import BackendConfig, Tokenizer, WireProtocol
from tollkeeper.backends.credentials import CredentialKind
from tollkeeper.backends.presets import PRESETS
from tollkeeper.backends.wires import wire_for
from tollkeeper.bootstrap import build_catalog
from tollkeeper.bootstrap.backends import backend_config
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import OptionUnsupported
from tollkeeper.settings import BackendSettings, Settings

_URL = "https://127.0.0.1:9/v1"
# Presets whose recorded exchanges have another name.
_EXCHANGES = {
    "llamacpp": "llama-cpp",
    "lmstudio": "lm-studio",
    # Vertex AI's Claude answers in Anthropic's protocol.
    "vertex": "anthropic",
    "vertex-gemini": "gemini",
    "gemini-openai": "gemini-compatible",
    "bedrock": "bedrock-converse",
    "bedrock-claude": "bedrock-claude",
}
_DOCUMENT = Path(__file__).parents[2] / "docs" / "providers.md"


def _declared(preset: str, **changes: Any) -> BackendSettings:
    urls = {} if PRESETS[preset].url else {"urls": [_URL]}
    return BackendSettings.model_validate({"name": "b", "preset": preset, **urls, **changes})


def _config(preset: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> BackendConfig:
    if PRESETS[preset].key_env:
        monkeypatch.setenv(PRESETS[preset].key_env, "key-of-the-provider")
    return backend_config(_declared(preset, **changes), None)


def _sent(preset: str, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> dict[str, Any]:
    wire = wire_for(_config(preset, monkeypatch))
    call = make_call(streamed=True, **fields)
    body = json.loads(wire.encode_request(call, stream=True, extra={}))
    assert isinstance(body, dict)
    return body


@each("preset", PRESETS)
def test_a_preset_is_a_backend(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(preset, monkeypatch)
    assert config.urls == (PRESETS[preset].url or _URL,)
    assert config.api_key == ("key-of-the-provider" if PRESETS[preset].key_env else None)
    assert (config.protocol, config.credential) == (
        PRESETS[preset].protocol,
        PRESETS[preset].credential,
    )
    body = _sent(preset, monkeypatch)
    protocol = PRESETS[preset].protocol
    # The path says that it is a stream.
    if protocol in (WireProtocol.GEMINI, WireProtocol.VERTEX_GEMINI):
        body = {"stream": True, "max_tokens": body["generationConfig"]["maxOutputTokens"]}
    elif protocol is WireProtocol.CONVERSE:
        body = {"stream": True, "max_tokens": body["inferenceConfig"]["maxTokens"]}
    elif protocol is WireProtocol.BEDROCK_MESSAGES:
        body = {**body, "stream": True}
    elif protocol is WireProtocol.RESPONSES:
        body = {**body, "max_tokens": body["max_output_tokens"]}
    assert body["stream"] is True
    bounds = {"max_tokens", "max_completion_tokens"} & set(body)
    assert len(bounds) == 1
    assert bool(PRESETS[preset].url) is not bool(PRESETS[preset].address_form)


@each("preset", PRESETS)
def test_a_preset_has_a_recorded_exchange_and_a_row(preset: str) -> None:
    prefix = _EXCHANGES.get(preset, preset)
    assert [path for path in RECORDED.iterdir() if path.stem.startswith(prefix)]
    assert f"| `{preset}` |" in _DOCUMENT.read_text()


@each("preset", ["mistral", "ollama", "together", "lmstudio"])
def test_the_bound_goes_where_the_server_reads_it(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller of `max_completion_tokens`: Ollama would ignore it, Mistral would refuse it."""
    body = _sent(preset, monkeypatch, output_tokens_max=77)
    assert body["max_tokens"] == 77
    assert "max_completion_tokens" not in body


def test_openai_gets_the_bound_that_all_its_models_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _sent("openai", monkeypatch)["max_completion_tokens"] == 1024


def test_fields_are_refused_renamed_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    body = _sent("mistral", monkeypatch, seed=7, user="u", metadata={"a": "b"})
    assert body["random_seed"] == 7
    assert not {"seed", "user", "metadata", "stream_options"} & set(body)
    with pytest.raises(OptionUnsupported) as refused:
        _sent("mistral", monkeypatch, logit_bias={"1": 1})
    assert refused.value.param == "logit_bias"
    assert (
        _sent("openai", monkeypatch, seed=7, user="u").items() >= {"seed": 7, "user": "u"}.items()
    )


def test_reasoning_of_earlier_answers_is_left_out_where_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mistral answers 422 to a message with it; others read it."""
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    messages = [{"role": "user", "content": "Hi"}, {**said, "reasoning": "Hm."}]
    messages.append({"role": "user", "content": 'Say "reasoning".'})
    body = _sent("mistral", monkeypatch, messages=messages)
    assert body["messages"] == [messages[0], {"role": "assistant", "content": "Yes."}, messages[2]]
    assert _sent("openai", monkeypatch, messages=messages)["messages"] == messages
    # Also where the gateway writes the messages itself, as for a caller of Responses.
    wire = wire_for(_config("mistral", monkeypatch))
    call = make_call(messages=messages)
    anew = replace(call, prompt=replace(call.prompt, written=None))
    written = json.loads(wire.encode_request(anew, stream=False, extra={}))
    assert "Hm." not in json.dumps(written["messages"])


def test_a_refused_field_with_the_value_that_holds_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = _sent("ollama", monkeypatch, tools=tools, tool_choice="auto", parallel_tool_calls=True)
    assert "tools" in body
    assert not {"tool_choice", "parallel_tool_calls"} & set(body)
    for fields in {"tool_choice": "required"}, {"parallel_tool_calls": False}:
        with pytest.raises(OptionUnsupported):
            _sent("ollama", monkeypatch, tools=tools, **fields)


def test_what_is_set_wins_over_the_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("key-of-the-file")
    config = _config(
        "anthropic",
        monkeypatch,
        urls=["https://proxy.example/v1"],
        credential="bearer",
        api_key_file=str(key),
        tokenizer="none",
    )
    assert config.urls == ("https://proxy.example/v1",)
    assert (config.credential, config.api_key) == (CredentialKind.BEARER, "key-of-the-file")
    assert (config.protocol, config.tokenizer) == (WireProtocol.MESSAGES, Tokenizer.NONE)
    assert _config(
        "mistral", monkeypatch, fields={"stream_options": "stream_options"}
    ).include_usage


def test_settings_survive_the_way_to_a_worker() -> None:
    """A worker gets the settings with every field set, and reads the same backend of them."""
    declared = _declared("mistral", api_key_env="OTHER_KEY")
    assert BackendSettings.model_validate(declared.model_dump(mode="json")) == declared


def test_the_compatible_address_of_bedrock_has_a_preset_of_its_own() -> None:
    urls = ["https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1"]
    with pytest.raises(ValidationError, match="preset is bedrock-openai"):
        BackendSettings.model_validate({"name": "b", "preset": "bedrock", "urls": urls})
    named = BackendSettings.model_validate({"name": "b", "preset": "bedrock-openai", "urls": urls})
    assert named.protocol == "chat"


def test_an_address_that_a_preset_cannot_know() -> None:
    with pytest.raises(ValidationError, match=r"of the form https://RESOURCE\.openai\.azure\.com"):
        BackendSettings.model_validate({"name": "b", "preset": "azure"})


@each(
    ("changes", "said"),
    [
        ({"preset": "netscape"}, "there are: openai, azure"),
        ({"preset": "openai", "kind": "embedded", "urls": []}, "preset: a backend of kind"),
    ],
)
def test_a_preset_that_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        BackendSettings.model_validate({"name": "b", **changes})


@each(
    ("preset", "own", "bound"),
    [
        ("anthropic", None, 4784),
        ("anthropic", 99, 99),
        ("anthropic", 0, None),
        ("openai", None, 48_169),
    ],
)
def test_the_bound_of_an_image(preset: str, own: int | None, bound: int | None) -> None:
    changes = {} if own is None else {"token_bounds": {"image": own}}
    assert _model({"preset": preset}, **changes).token_bounds.image == bound


def _model(backend: dict[str, Any], **changes: Any) -> Model:
    model = {
        "id": "m",
        "backend": "b",
        "upstream_model": "u",
        "context_length": 1000,
        "max_output_length": 100,
        **changes,
    }
    declared = {"backends": [{"name": "b", **backend}], "models": [model]}
    return build_catalog(Settings.model_validate(declared)).models[0]


@each(
    ("backend", "own", "tokens", "rereads"),
    [
        ({"preset": "anthropic"}, 0, None, True),
        ({"preset": "anthropic"}, 8000, 8000, True),
        ({"preset": "openai", "protocol": "responses"}, 0, None, True),
        ({"preset": "openai"}, 0, None, False),
        # Google does not charge for what a search finds.
        ({"preset": "gemini"}, 0, 0, False),
        ({"preset": "gemini"}, 50, 50, False),
    ],
)
def test_what_searches_add_to_a_hold(
    backend: dict[str, Any], own: int, tokens: int | None, rereads: bool
) -> None:
    bounds = _model(backend, token_bounds={"web_search": own}).token_bounds
    assert (bounds.web_search, bounds.search_rereads) == (tokens, rereads)


@each(
    ("backend", "features", "held"),
    [
        ({"preset": "xai"}, ["reasoning"], 100),
        ({"preset": "xai"}, ["tools"], 10),
        # There reasoning is inside of the output.
        ({"preset": "xai", "protocol": "responses"}, ["reasoning"], 10),
        ({"preset": "openai"}, ["reasoning"], 10),
    ],
)
def test_reasoning_beside_the_bound_is_held(
    backend: dict[str, Any], features: list[str], held: int
) -> None:
    """xAI's chat counts reasoning beside the completion, which alone is bounded."""
    model = _model(backend, supported_features=features)
    call = replace(make_call(output_tokens_max=10), model=model)
    assert call.output_tokens_held == held
