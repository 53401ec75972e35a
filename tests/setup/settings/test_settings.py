"""Tests that every setting is documented, and that error messages name wrong settings."""

import dataclasses
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.support.tables import each
from tollkeeper.setup import build_catalog, build_engine, master_secret
from tollkeeper.setup.embedded.packaged_model import PACKAGED_MODEL
from tollkeeper.setup.engine import engine_context_length
from tollkeeper.setup.settings import DEFAULT_FILE, Settings, SettingsError, load_settings
from tollkeeper.setup.settings.schema import JudgeSettings

_ROOT = Path(__file__).parents[3]
_BACKEND = {"name": "b", "kind": "openai", "urls": ["http://127.0.0.1:9/v1"]}
_MODEL = {
    "id": "m",
    "backend": "b",
    "upstream_model": "u",
    "context_length": 8,
    "max_output_length": 4,
}
_JUDGE = {"backend": "b", "model": "m"}


def _section(annotation: Any) -> type[BaseModel] | None:
    """Returns the section class of an annotation, which may be optional or a list; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in typing.get_args(annotation):
        if not isinstance(inner, types.EllipsisType):
            found = _section(inner)
            if found is not None:
                return found
    return None


def _all_settings() -> Iterator[tuple[str, str, Any]]:
    """Yields the section, the name and the type of every setting."""
    for section, field in Settings.model_fields.items():
        kind = _section(field.annotation)
        assert kind is not None, f"{section} is no section"
        for name, inner in kind.model_fields.items():
            yield section, name, inner.annotation


_SETTINGS = [(section, name, kind) for section, name, kind in _all_settings()]
_NAMES = [f"{section}.{name}" for section, name, _ in _SETTINGS]


def _document(section: str, **values: object) -> dict[str, Any]:
    """Returns a valid configuration with these values in one section."""
    document: dict[str, Any] = {
        "backends": [dict(_BACKEND)],
        "models": [dict(_MODEL)],
        "judge": dict(_JUDGE),
    }
    if section in ("backends", "models"):
        document[section][0].update(values)
    else:
        document[section] = {**document.get(section, {}), **values}
    return document


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else repr(value)


def _load(folder: Path, document: dict[str, Any]) -> Settings:
    path = folder / "tollkeeper.toml"
    path.write_text("\n".join(f"{key} = {_toml(value)}" for key, value in document.items()))
    return load_settings(path)


def test_every_setting_is_documented() -> None:
    """The document contains the whole name, or the short name below the heading of a list of tables."""
    document = (_ROOT / "docs" / "configuration.md").read_text()
    for name in _NAMES:
        section, _, own = name.partition(".")
        repeated = document.partition(f"## `[[{section}]]`")[2].partition("\n## ")[0]
        assert f"`{name}`" in document or f"`{own}`" in repeated, name


def test_wrong_type_is_named(tmp_path: Path) -> None:
    not_named = []
    for section, name, kind in _SETTINGS:
        own_name = {"backends": "b", "models": "m"}.get(section)
        shown = f"{section} '{own_name}': {name}" if own_name else f"{section}.{name}"
        if (section, name) in (("backends", "name"), ("models", "id")):
            shown = f"{section} number 1: {name}"
        wrong: object = [[1]] if "dict" in str(kind) else {"wrong": 1}
        try:
            _load(tmp_path, _document(section, **{name: wrong}))
        except SettingsError as error:
            if shown in str(error):
                continue
        not_named.append(shown)
    assert not_named == []


_OUT_OF_BOUNDS: list[tuple[str, str, object]] = [
    ("server", "port", -1),
    ("server", "port", 65536),
    ("server", "workers", 0),
    ("server", "grace_s", -1),
    ("database", "pool_size", 1),
    ("database", "url", "mysql://x"),
    ("database", "url", "x"),
    ("limits", "body_bytes", 1023),
    ("limits", "inference_deadline_s", 0),
    ("limits", "requests_per_minute", 0),
    ("limits", "concurrency", 0),
    ("auth", "customer_key_header", "X Api Key"),
    ("auth", "customer_key_header", ""),
    # The gateway would read a customer's key as something else, and would refuse every call.
    ("auth", "customer_key_header", "authorization"),
    ("auth", "customer_key_header", "content-type"),
    ("auth", "customer_key_header", "anthropic-version"),
    ("auth", "project_key_default_permissions", ["policies:write"]),
    ("auth", "project_key_default_permissions", ["everything"]),
    ("judge", "default_threshold_basis_points", 0),
    ("judge", "default_threshold_basis_points", 10000),
    ("backends", "kind", "other"),
    ("backends", "protocol", "telegraph"),
    ("backends", "name", ""),
    ("backends", "retries", 11),
    ("models", "id", ""),
    ("models", "id", "x" * 201),
    ("models", "context_length", 0),
    ("models", "max_output_length", 0),
    ("models", "input_modalities", ["smell"]),
    ("models", "pricing", {"hours": "1"}),
    # An empty host would listen on every address of the machine.
    ("server", "host", ""),
    ("operator", "host", ""),
    ("console", "host", ""),
    # Two empty names would count as TLS, but the console would speak HTTP.
    ("console", "tls_files", ["", ""]),
    # No request would ever have one of these hosts, or come from one of these proxies.
    ("console", "allowed_hosts", ["console.example.com:8443"]),
    ("console", "allowed_hosts", ["https://console.example.com"]),
    ("console", "allowed_hosts", ["fd00::5"]),
    ("console", "trusted_proxies", ["proxy.internal"]),
    ("console", "trusted_proxies", ["10.0.0.0/33"]),
    ("console", "trusted_proxies", ["10.0.0.2/8"]),
    ("sessions", "headers", ["X Session"]),
    ("sessions", "headers", [""]),
    # A second header with one of these names would break HTTP framing or hide the request id.
    ("extensions", "cost_header", "content-length"),
    ("extensions", "cost_header", "x-request-id"),
]


@each(("section", "name", "value"), _OUT_OF_BOUNDS)
def test_value_out_of_bounds_is_named(
    tmp_path: Path, section: str, name: str, value: object
) -> None:
    with pytest.raises(SettingsError) as refused:
        _load(tmp_path, _document(section, **{name: value}))
    assert name in str(refused.value)


@each(
    ("document", "words"),
    [
        ({"srever": {"port": 1}}, ["srever"]),
        ({"server": {"prot": 1}}, ["server.prot"]),
        ({"backends": [_BACKEND, _BACKEND]}, ["backends", "same name"]),
        ({"backends": [_BACKEND], "models": [_MODEL, _MODEL]}, ["models", "same id"]),
        ({"models": [_MODEL]}, ["models", "'b'", "not declared"]),
        ({"judge": _JUDGE}, ["judge.backend", "'b'"]),
        ({"backends": [{"name": "b", "kind": "openai"}]}, ["backends 'b'", "urls"]),
        ({"backends": [{**_BACKEND, "kind": "embedded"}]}, ["backends 'b'", "urls"]),
        (
            {"backends": [{"name": "b", "kind": "embedded", "protocol": "responses"}]},
            ["backends 'b'", "protocol", "embedded"],
        ),
        ({"backends": [{**_BACKEND, "urls": ["ftp://x"]}]}, ["backends 'b'", "ftp://x"]),
        ({"server": 5}, ["server"]),
        (
            {"console": {"tls_files": ["certificate.pem"]}},
            ["console.tls_files", "must be two files"],
        ),
        *(
            ({"console": {"gateway_url": url}}, ["console.gateway_url", words])
            for url, words in (
                ("gateway.example.com", "must start with http:// or https://"),
                ("ftp://gateway.example.com", "must start with http:// or https://"),
                ("https://", "names no host"),
                ("https://gateway.example.com:many", "is not an http or https address"),
                ("https://me@gateway.example.com", "must have no user, query or fragment"),
                ("https://gateway.example.com?a=b", "must have no user, query or fragment"),
                ("https://gateway.example.com/?", "must have no user, query or fragment"),
                ("https://gateway.example.com#a", "must have no user, query or fragment"),
                ("https://gateway.example.com/a b", "must be printable ASCII without spaces"),
                ("https://gateway.example.com/v1/", "must not end with /v1"),
            )
        ),
        *(
            (
                {"alerts": {"webhook": {"url": url, "secret": "env:A"}}},
                ["alerts.webhook.url", "must be an http:// or https:// address without user"],
            )
            for url in (
                *("alerts.example.com", "ftp://alerts.example.com", "https://", "http://[::1/x"),
                *("https://me:password@alerts.example.com/", "https://alerts.example.com:99999/"),
                *("https://a b/", "https://alerts.example.com/a b", "https://a.example?x#y"),
            )
        ),
    ],
)
def test_what_does_not_fit_together_is_named(
    tmp_path: Path, document: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as refused:
        _load(tmp_path, document)
    for word in words:
        assert word in str(refused.value)


@each("price", ["free", "-1", "1e-6", "0.0000000000001", ""])
def test_wrong_price_is_named(tmp_path: Path, price: str) -> None:
    settings = _load(tmp_path, _document("models", pricing={"prompt": price}))
    with pytest.raises(SettingsError, match=r"pricing\.prompt"):
        build_catalog(settings)


_PRICES = {"prompt": "0.000001", "completion": "0.000002"}
_TIER = {"above_tokens": 10, "pricing": {"prompt": "0.000001", "completion": "0.000003"}}


@each(
    ("declared", "named"),
    [
        ({"price_tiers": [{**_TIER, "pricing": {}}]}, "price_tiers.0.pricing"),
        ({"price_tiers": [_TIER, _TIER]}, "price_tiers.1.above_tokens"),
        ({"service_tiers": {"flex": "1e3"}}, "service_tiers.flex"),
        ({"service_tiers": {"unasked": "flex"}}, "service_tiers.unasked"),
        (
            {"price_changes": [{"valid_from": "2027-01-01", "pricing": {"prompt": "free"}}]},
            "price_changes.0.pricing.prompt",
        ),
        (
            {
                "price_changes": [
                    {"valid_from": "2027-01-01"},
                    {"valid_from": "2027-01-01T01:00:00+01:00"},
                ]
            },
            "price_changes.1.valid_from",
        ),
    ],
)
def test_wrong_prices_of_a_call_are_named(
    tmp_path: Path, declared: dict[str, Any], named: str
) -> None:
    settings = _load(tmp_path, _document("models", pricing=_PRICES, **declared))
    with pytest.raises(SettingsError) as refused:
        build_catalog(settings)
    assert f": {named}: " in str(refused.value)


@each("moment", ["tomorrow", "2027-01-01T00:00:00", 5, "2027-13-01"])
def test_a_moment_that_can_be_none_is_named(tmp_path: Path, moment: object) -> None:
    document = _document("models", price_changes=[{"valid_from": moment}])
    with pytest.raises(SettingsError, match=r"models 'm': price_changes\.0\.valid_from"):
        _load(tmp_path, document)


def test_a_price_change_begins_with_its_day_in_utc(tmp_path: Path) -> None:
    changes = [
        {"valid_from": "2027-02-01T12:00:00+02:00", "pricing": {"prompt": "3"}},
        {"valid_from": "2027-01-01", "pricing": {"prompt": "2"}},
    ]
    document = _document("models", pricing={"prompt": "1"}, price_changes=changes)
    [model] = build_catalog(_load(tmp_path, document)).models
    january, february = 1_798_761_600, 1_801_476_000
    prices = [
        model.pricing_at(now).declared["prompt"]
        for now in (0, january - 1, january, february - 1, february, february + 10**9)
    ]
    assert prices == ["1", "1", "2", "2", "3", "3"]


def test_a_model_has_what_its_backends_protocol_carries(tmp_path: Path) -> None:
    declared = {
        "supported_sampling_parameters": ["seed", "top_p", "stop", "temperature"],
        "input_modalities": ["video", "image", "text"],
        "output_modalities": ["audio", "text", "image"],
        "options": {"verbosity": "elsewhere"},
    }
    for protocol, sampling, inputs, outputs in (
        ("chat", ("seed", "top_p", "stop", "temperature"), 3, 2),
        ("responses", ("top_p", "temperature"), 2, 1),
    ):
        document = {
            "backends": [{**_BACKEND, "protocol": protocol}],
            "models": [{**_MODEL, **declared}],
        }
        [model] = build_catalog(_load(tmp_path, document)).models
        assert model.supported_sampling_parameters == sampling
        assert (len(model.input_modalities), len(model.output_modalities)) == (inputs, outputs)
        assert model.options["verbosity"] == "elsewhere"
        assert ("reasoning.summary" in model.options) is (protocol == "responses")


def test_default_file_is_right_and_complete() -> None:
    settings = load_settings(DEFAULT_FILE)
    assert build_catalog(settings).models
    assert settings.server.port == 8080


@each("text", ["not toml", "[server", "a = 1\na = 2", "\x00"])
def test_file_that_is_no_toml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"x\.toml is not TOML"):
        load_settings(path)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.toml cannot be read"):
        load_settings(tmp_path / "gone.toml")


def test_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLKEEPER_SERVER__PORT", "9999")
    monkeypatch.setenv("TOLLKEEPER_AUTH__PROJECT_KEY_DEFAULT_PERMISSIONS", '["models:read"]')
    settings = _load(tmp_path, {"server": {"port": 1, "workers": 3}})
    assert (settings.server.port, settings.server.workers) == (9999, 3)
    assert settings.auth.project_key_default_permissions == ("models:read",)


@each(
    ("variable", "value"),
    [
        ("TOLLKEEPER_SERVER__PORT", "many"),
        ("TOLLKEEPER_SERVER__PROT", "1"),
        ("TOLLKEEPER_MODELS", "not json"),
    ],
)
def test_wrong_environment_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refused:
        _load(tmp_path, {})
    assert variable.removeprefix("TOLLKEEPER_").split("__")[-1].lower() in str(refused.value)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    sources = ["file:stripe.secret", "env:STRIPE"]
    secrets = {"webhook_secrets": {"live": sources, "test": sources}}
    settings = _load(tmp_path, {"database": {"data_dir": "here"}, "payments": secrets})
    assert settings.database.data_dir == tmp_path / "here"
    for _, found in settings.payments.webhook_secrets:
        assert found == (f"file:{tmp_path / 'stripe.secret'}", "env:STRIPE")


def test_master_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _load(tmp_path, {"database": {"data_dir": str(tmp_path / "data")}})
    secret = master_secret(made)
    assert master_secret(made) == secret
    assert len(secret) >= 32
    assert (tmp_path / "data" / "master.key").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["master.key"]

    monkeypatch.setenv("A_SECRET", "x" * 32)
    named = _load(tmp_path, {"secrets": {"master_key": "env:A_SECRET"}})
    assert master_secret(named) == b"x" * 32
    monkeypatch.setenv("A_SECRET", "short")
    with pytest.raises(SettingsError, match=r"secrets\.master_key: A_SECRET must have"):
        master_secret(named)
    absent = _load(tmp_path, {"secrets": {"master_key": f"file:{tmp_path / 'gone'}"}})
    with pytest.raises(SettingsError, match="cannot be read"):
        master_secret(absent)


def test_the_default_model_is_the_packaged_one() -> None:
    """The engine, the catalogue and the settings file contain the same values for this model."""
    settings = load_settings(None)
    (declared,) = settings.models
    for name, value in dataclasses.asdict(PACKAGED_MODEL).items():
        assert getattr(declared, name) == value, name
    assert declared.display_name == declared.name
    assert settings.judge is not None
    assert settings.judge.model == PACKAGED_MODEL.upstream_model
    engine = build_engine(settings)
    assert engine is not None
    assert engine.options.context_length == declared.context_length
    assert engine.options.model_name == declared.upstream_model


def test_the_engine_has_the_context_of_its_models() -> None:
    elsewhere = {**_BACKEND, "name": "elsewhere"}
    settings = Settings.model_validate(
        {
            "backends": [{"name": "b", "kind": "embedded"}, elsewhere],
            "models": [
                {**_MODEL, "context_length": 1025},
                {**_MODEL, "id": "small", "context_length": 512},
                {**_MODEL, "id": "large", "context_length": 10**6, "backend": "elsewhere"},
            ],
        }
    )
    assert engine_context_length(settings) == 1025
    judge = JudgeSettings(backend="b", model="m")
    judging = settings.model_copy(update={"judge": judge})
    assert engine_context_length(judging) == PACKAGED_MODEL.context_length
