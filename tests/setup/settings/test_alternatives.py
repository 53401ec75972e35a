"""Tests the settings of a model with several backends: mistakes are named, and the catalogue gets the
right routes."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.tables import each
from tollkeeper.core.catalog import Model
from tollkeeper.setup import build_catalog
from tollkeeper.setup.settings import Settings

_OWN = {"prompt": "0.000001", "completion": "0.000002"}
_OTHER = {"prompt": "0.000003", "completion": "0.000001"}
_URL = "http://127.0.0.1:9/v1"


def _settings(*alternatives: dict[str, Any], **model: Any) -> Settings:
    backends: list[dict[str, Any]] = [
        {"name": "own", "urls": [_URL], "fields": {"cache_salt": "cache_salt"}},
        {"name": "claude", "preset": "anthropic"},
        {"name": "vertex", "preset": "vertex", "urls": [_URL], "api_key_file": "token"},
        {"name": "responses", "protocol": "responses", "urls": [_URL]},
    ]
    declared = {
        "id": "m",
        "backend": "own",
        "upstream_model": "u",
        "context_length": 1000,
        "max_output_length": 100,
        "supported_features": ["tools", "reasoning", "logprobs", "json_mode"],
        "supported_sampling_parameters": ["seed", "temperature"],
        "input_modalities": ["text", "image", "audio"],
        "pricing": _OWN,
        "alternatives": alternatives,
        **model,
    }
    return Settings.model_validate({"backends": backends, "models": [declared]})


def _model(*alternatives: dict[str, Any], **model: Any) -> Model:
    (found,) = build_catalog(_settings(*alternatives, **model)).models
    return found


@each(
    ("alternatives", "said"),
    [
        ([{"backend": "nobody"}], "the backend 'nobody' is not declared"),
        ([{"backend": "own"}], "lists the backend 'own' twice"),
        ([{"backend": "claude"}, {"backend": "claude"}], "lists the backend 'claude' twice"),
        ([{"backend": "claude", "weight": 0}], "weight"),
        ([{"backend": "claude", "order": -1}], "order"),
        ([{"backend": f"b{number}"} for number in range(17)], "alternatives"),
    ],
)
def test_what_is_wrong_is_named(alternatives: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        _settings(*alternatives)


def test_orders_weights_and_names() -> None:
    model = _model(
        {"backend": "claude", "upstream_model": "c", "order": 0, "weight": 2.5},
        {"backend": "responses"},
    )
    found = [(r.model.backend, r.model.upstream_model, r.order, r.weight) for r in model.routes]
    assert found == [("own", "u", 0, 1), ("claude", "c", 0, 2.5), ("responses", "u", 1, 1)]
    assert model.backends == ("own", "claude", "responses")
    assert _model().routes == ()


def test_prices_of_its_own_or_of_the_model() -> None:
    changes = [{"valid_from": "2030-01-01", "pricing": _OTHER}]
    model = _model(
        {"backend": "claude", "pricing": _OTHER}, {"backend": "responses"}, price_changes=changes
    )
    now, later = 1_800_000_000, 2_000_000_000
    at = [(r.model.pricing_at(now).prompt, r.model.pricing_at(later).prompt) for r in model.routes]
    assert at == [(1_000_000, 3_000_000), (3_000_000, 3_000_000), (1_000_000, 3_000_000)]


def test_what_all_of_them_can_do() -> None:
    model = _model({"backend": "claude"})
    assert model.supported_features == ("tools", "reasoning")
    assert model.supported_sampling_parameters == ("temperature",)
    assert model.input_modalities == ("text", "image")
    # One of the backends can separate caches, so calls get a cache salt.
    assert model.isolates_cache
    # The model has the higher image bound of its backends.
    assert model.token_bounds.image == 48_169
    own, claude = model.routes
    assert own.model.supported_features == ("tools", "reasoning", "logprobs", "json_mode")
    assert claude.model.token_bounds.image == 4784
    grok = _model({"backend": "claude", "upstream_model": "grok-4"})
    assert grok.token_bounds.template == claude.model.token_bounds.template + 320
    # The model has the more expensive search bound of its backends.
    assert not own.model.token_bounds.search_rereads_prompt
    assert claude.model.token_bounds.search_rereads_prompt
    assert model.token_bounds.search_rereads_prompt
    assert model.token_bounds.web_search is None


@each(
    ("upstream_model", "token_bounds", "unbounded"),
    [
        ("gpt-5-pro", {}, False),
        ("o3-deep-research", {}, True),
        ("sonar-pro", {}, True),
        ("groq/compound", {}, True),
        ("gpt-4o-search-preview", {}, True),
        # The operator's own declaration applies.
        ("sonar-pro", {"unbounded": False}, False),
        ("sonar-pro", {"searches": 0}, False),
        ("u", {"searches": 3}, True),
        ("u", {"unbounded": True}, True),
    ],
)
def test_models_that_search_on_their_own_are_known(
    upstream_model: str, token_bounds: dict[str, Any], unbounded: bool
) -> None:
    declared = {"upstream_model": upstream_model, "token_bounds": token_bounds}
    assert _model(**declared).token_bounds.unbounded is unbounded
    # One backend is enough.
    elsewhere = _model({"backend": "claude", "upstream_model": "u"}, **declared)
    assert elsewhere.token_bounds.unbounded is unbounded


def test_only_some_protocols_are_told_how_many_searches_are_allowed() -> None:
    assert _model(backend="claude").token_bounds.limits_searches
    assert not _model(backend="responses").token_bounds.limits_searches
    mixed = _model({"backend": "responses"}, backend="claude")
    assert not mixed.token_bounds.limits_searches


def test_sealed_reasoning_needs_one_protocol() -> None:
    sealed = "reasoning.encrypted_content"
    mixed = _model({"backend": "responses"}, backend="claude")
    assert all(sealed in route.model.options for route in mixed.routes)
    assert sealed not in mixed.options
    # Each of these two endpoints accepts reasoning that the other one has signed.
    assert sealed in _model({"backend": "vertex"}, backend="claude").options


def test_an_option_must_be_known_everywhere() -> None:
    model = _model({"backend": "claude"}, options={"verbosity": "text.verbosity"})
    assert model.options == {"verbosity": "text.verbosity"}


def test_settings_survive_the_way_to_a_worker() -> None:
    settings = _settings({"backend": "claude", "pricing": _OTHER}, {"backend": "responses"})
    again = Settings.model_validate(settings.model_dump(mode="json"))
    assert build_catalog(again).models == build_catalog(settings).models


def test_prices_for_a_million_tokens() -> None:
    """Clients see prices for one token, whatever the file says."""
    own = {"pricing": {"prompt": "2.5/M", "completion": "0.00001"}}
    model = _model({"backend": "claude", "pricing": {"prompt": "5/M"}}, **own)
    assert model.routes[0].model.pricing.declared["prompt"] == "0.0000025"
    assert [route.model.pricing.prompt for route in model.routes] == [2_500_000, 5_000_000]
