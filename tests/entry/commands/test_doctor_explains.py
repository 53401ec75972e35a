"""Tests that `tollkeeper doctor` explains each wrong setting with its line and a correction."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.warm_program import run_warm

# The database and the backend refuse connections at once.
_BASE = """
[database]
url = "postgresql://127.0.0.1:1/books"
[embedded]
enabled = false
[[backends]]
name = "cluster"
urls = ["http://127.0.0.1:9/v1"]
[[models]]
id = "small"
backend = "cluster"
upstream_model = "chat-small"
context_length = 8192
max_output_length = 1024
"""
_MODEL = """
[[models]]
id = "large"
upstream_model = "chat-large"
context_length = 8192
"""
_SAME_ID = _MODEL.replace('"large"', '"small" # here')
_FREE = _MODEL.partition("\n[[models]]\n")[2] + "backend = 'cluster'\nmax_output_length = 9"
_HERE = "# here"
# The text that is appended to the settings (after the model), with `# here` in the wrong line, and
# the expected message.
_WRONG = (
    # Wrong names.
    ("[server]\nprot = 1 # here", "server.prot: is not a setting; did you mean port?"),
    ("[srever] # here\nport = 1", "srever: is not a setting; did you mean server?"),
    ("max_outputs = 5 # here", "models 'small': max_outputs: is not a setting; did you mean"),
    ("[logs]\nretention_days = 3 # here", "it belongs under [activity] or [audit]"),
    ("[logs]\nbanana = 1 # here", "logs.banana: is not a setting; remove it"),
    (
        "supported_features = ['reasonning'] # here",
        "'reasonning' is not a feature; did you mean reasoning?",
    ),
    ("supported_sampling_parameters = ['temprature'] # here", "did you mean temperature?"),
    (
        "pricing = { promt = '1' } # here",
        "models 'small': pricing.promt: there is no such price; did you mean prompt?",
    ),
    ("pricing = { request = '2.5/M' } # here", "request: '2.5/M' is for tokens"),
    ("pricing = { prompt = '2,5/M' } # here", "prompt: '2,5' is not a decimal amount in USD"),
    ("prompt_caching = 'calller' # here", "did you mean caller?"),
    (
        "[[backends]]\nname = 'b'\npreset = 'opnai' # here",
        "backends 'b': preset = 'opnai': there is no such preset; did you mean openai?",
    ),
    (
        "[judge]\nmodel = 'm'\nbackend = 'clustr' # here",
        "judge.backend: the backend 'clustr' is not declared in backends; did you mean cluster?",
    ),
    (
        f"{_MODEL}max_output_length = 1\nbackend = 'clustr' # here",
        "models 'large': backend: the backend 'clustr' is not declared",
    ),
    (
        "[auth]\nproject_key_default_permissions = ['model:read'] # here",
        "'model:read' is not a customer permission; did you mean models:read?",
    ),
    # Wrong values.
    (
        "pricing = { prompt = 0.000002 } # here",
        'pricing.prompt = 0.000002: must be a string; write it in quotes: "0.000002"',
    ),
    ("pricing = { prompt = '$2' } # here", "models 'small': pricing.prompt: "),
    (
        "[[models.price_changes]]\nvalid_from = 5 # here",
        "must be a date or a time, for example 2027-01-01",
    ),
    (
        "pricing = { prompt = '1' }\nservice_tiers = { flex = 0.5 } # here",
        'service_tiers.flex = 0.5: must be a string; write it in quotes: "0.5"',
    ),
    ("[server]\nport = 70000 # here", "server.port = 70000: must be at most 65535"),
    ("[server]\nworkers = true # here", "server.workers = True: must be a number"),
    ("[server]\nworkers = 'two' # here", "server.workers = 'two': must be an integer"),
    ("input_modalities = 'text' # here", "must be a list; write ['text']"),
    (
        "[sessions]\nheaders = [ # here\n 'X-Session',\n 'X Session',\n]",
        "sessions.headers.1 = 'X Session': must have the form",
    ),
    # Wrong structure.
    ("[judge] # here\nbackend = 'cluster'", "judge.model: is required"),
    (
        f"{_MODEL.replace('[[models]]', '[[models]] # here')}max_output_length = 1",
        "models 'large': backend: is required",
    ),
    ("[[server]] # here\nport = 1", "write [server] instead of [[server]]"),
    (
        "[policy]\ndenied_content = 'images' # here",
        "policy.denied_content = 'images': must be a list; write ['images']",
    ),
    ("[server]\nhost = 0.0.0.0 # here", "a string needs quotes"),
    ("[server]\nhost = 'a # here\nport = 1", "a closing quote is missing"),
    ("[server]\nport = 1\nport = 2 # here", "the setting occurs twice; remove one"),
    ("[database] # here", "the section occurs twice; merge the two"),
    # Settings that contradict each other.
    (
        f"{_SAME_ID}backend = 'cluster'\nmax_output_length = 1",
        "models 'small': id: two models have the same id 'small'; rename one",
    ),
    (
        "[[backends]]\nname = 'cluster' # here\nurls = ['http://h/v1']",
        "two backends have the same name 'cluster'; rename one",
    ),
    (
        f"{_MODEL}backend = 'cluster'\nmax_output_length = 9000 # here",
        "models 'large': max_output_length: 9000 tokens of output do not fit",
    ),
    (
        "[[backends]] # here\nname = 'b'",
        "backends 'b': urls: a backend of kind 'openai' needs at least one url",
    ),
    ("[[backends]]\nname = 'b'\nurls = ['h/v1'] # here", "must start with http:// or https://"),
    ("[console]\ntls_files = ['k'] # here", "must be two files: the certificate and its key"),
    (
        "[alerts]\nwebhook = { url = 'https://h' } # here",
        "alerts.webhook.url: needs secret, which signs the alerts",
    ),
    # Settings that are valid but probably a mistake.
    (
        "pricing = { prompt = '2.5' } # here",
        'prompt = "2.5" is 2500000 USD for a million tokens',
    ),
    (
        "price_changes = [{ valid_from = 2030-01-01, pricing = { prompt = '0.001' } }] # here",
        'write "0.001/M"',
    ),
    ("[[models]] # here\n" + _FREE, "models 'large': it has no prices, so its calls are free"),
    (
        "[[backends]]\nname = 'b'\nurls = ['http://127.0.0.1:9'] # here",
        "http://127.0.0.1:9 has no path, but most servers need http://127.0.0.1:9/v1",
    ),
    (
        "[[backends]]\nname = 'b'\nurls = ['http://127.0.0.1:9/v1/chat/completions'] # here",
        "remove /chat/completions, because the gateway appends the path itself",
    ),
    (
        "[operator]\nport = 8080 # here",
        "operator.port: server.port is 8080 too: one of them cannot listen",
    ),
    (
        "[console]\nhost = '0.0.0.0' # here",
        "0.0.0.0 is not loopback, so the console does not start: set console.tls_files",
    ),
    # Missing secrets.
    (
        "[secrets]\nmaster_key = 'env:TK_MASTER' # here",
        "secrets.master_key: $TK_MASTER is not set",
    ),
    (
        "[secrets]\nmaster_key = 'env:$TK_MASTER' # here",
        'must be "env:NAME" or "file:PATH", and not the secret itself',
    ),
    ("[secrets]\nmaster_key = 'file:absent' # here", "cannot be read: No such file or directory"),
    (
        "[[backends]]\nname = 'b'\nurls = ['http://127.0.0.1:9/v1']\napi_key_env = 'NO_SUCH_KEY' # here",
        "backends 'b': api_key_env: $NO_SUCH_KEY is not set",
    ),
)


def _findings(folder: Path, text: str, **variables: str) -> list[str]:
    path = folder / "tollkeeper.toml"
    path.write_text(text)
    environment = {name: value for name, value in os.environ.items() if "TOLLKEEPER" not in name}
    code, out, err = run_warm(
        ["--config", str(path), "doctor", "--json"],
        folder=folder,
        environment={**environment, **variables},
        timeout_s=120,
    )
    assert out, err
    assert code == 1 or '"warning"' in out, out
    rows = json.loads(out)["data"]
    return [row["detail"].replace(str(path), "FILE") for row in rows if row["verdict"] != "ok"]


def test_each_has_its_line_and_its_fix(tmp_path: Path) -> None:
    assert len(_WRONG) >= 30
    missed = []
    for appended, said in _WRONG:
        text = f"{_BASE}{appended}\n"
        before, marked, _ = text.partition(_HERE)
        assert marked
        line = before.count("\n") + 1
        found = [detail for detail in _findings(tmp_path, text) if said in detail]
        if not any("[key]" not in one and _says_line(one, line) for one in found):
            missed.append((appended, found or _findings(tmp_path, text)))
    assert missed == []


def _says_line(detail: str, line: int) -> bool:
    return detail.startswith(f"FILE, line {line}: ") or bool(
        re.search(rf"\(at line {line}\b", detail)
    )


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TOLLKEEPER_SERVER__PORT", "x", "server.port = 'x': must be an integer"),
        ("TOLLKEEPER_SERVER", '{"port": "x"}', "server.port = 'x': must be an integer"),
        ("TOLLKEEPER_MODELS", '[{"id": "a"}]', "models 'a': backend: is required"),
    ],
)
def test_a_variable_is_named_in_the_place_of_a_line(
    tmp_path: Path, variable: str, value: str, said: str
) -> None:
    found = _findings(tmp_path, f"{_BASE}[server]\nport = 1\n", **{variable: value})
    assert f"{variable}: {said}" in found


def test_a_file_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "tollkeeper.toml"
    path.write_bytes("[server]\n# Größe\n".encode("latin-1"))
    found = run_warm(
        ["--config", str(path), "migrate"], folder=tmp_path, environment={}, timeout_s=120
    )
    assert "line 2 is not UTF-8; save the file as UTF-8" in found[2]
