"""Tests `tollkeeper doctor`."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.judged_gateway import LIKELY, UNLIKELY, ScriptedJudge, judge_answer_of
from tests.support.program import Program, write_config
from tests.support.upstream import (
    Upstream,
    Verb,
    answer,
    chat,
    completion,
    model_list,
    refuse,
    reset_before_headers,
)
from tollkeeper.setup.embedded.packaged_model import PACKAGED_MODEL
from tollkeeper.setup.telemetry import CONTENT, ENDPOINT

_JUDGE = """
[judge]
backend = "cluster"
model = "chat-small"
"""
_ENGINE = f"""
[judge]
backend = "local"
model = "{PACKAGED_MODEL.upstream_model}"
deadline_s = 200
[embedded]
parallel = 1
"""
_LOCAL = """
[[backends]]
name = "local"
kind = "embedded"
"""
_NAMES = ["settings", "master secret", "database", "open files", "backend cluster", "judge"]


@pytest.fixture
async def judge() -> AsyncIterator[ScriptedJudge]:
    async with ScriptedJudge() as judge:
        yield judge


def _findings(program: Program) -> tuple[int, dict[str, dict[str, Any]], bool]:
    outcome = program.run("doctor", "--json")
    document = json.loads(outcome.out)
    assert set(document) == {"ok", "data"}
    assert outcome.err.count("\n") == (0 if document["ok"] else 1)
    return outcome.code, {row["name"]: row for row in document["data"]}, document["ok"]


def _over(program: Program, folder: Path, data_dir: Path, judge: ScriptedJudge) -> Program:
    config = write_config(folder, data_dir, more=_JUDGE)
    config.write_text(config.read_text().replace("http://127.0.0.1:9/v1", judge.url))
    return program.with_config(config)


async def test_everything_stands(
    program: Program, data_dir: Path, tmp_path: Path, judge: ScriptedJudge
) -> None:
    judge.opinion = lambda asked: LIKELY if "parcel" in asked.question else UNLIKELY
    program = _over(program, tmp_path, data_dir, judge)
    code, found, ok = await asyncio.to_thread(_findings, program)
    assert code == 0
    assert ok
    assert list(found) == _NAMES
    assert {row["verdict"] for row in found.values()} == {"ok"}
    assert found["database"]["detail"].startswith(f"embedded in {data_dir}, durable, schema ")
    assert judge.url in found["backend cluster"]["detail"]
    assert "chat-small on the backend cluster" in found["judge"]["detail"]
    # The judge answered two questions, and `doctor` read the scores.
    shown = "scored 90.00 % if the answer is yes and 10.00 % if it is no"
    assert shown in found["judge"]["detail"]
    assert len(judge.questions) == 2
    assert all(question.endswith("?") for question in judge.questions)


@pytest.mark.parametrize("always", [LIKELY, UNLIKELY])
async def test_a_judge_that_says_the_same_to_everything(
    program: Program, data_dir: Path, tmp_path: Path, judge: ScriptedJudge, always: int
) -> None:
    judge.opinion = lambda _: always
    program = _over(program, tmp_path, data_dir, judge)
    code, found, _ = await asyncio.to_thread(_findings, program)
    assert (code, found["judge"]["verdict"]) == (0, "warning")
    line = program.config.read_text().partition('\nmodel = "chat-small"')[0].count("\n") + 2
    detail = found["judge"]["detail"]
    assert detail.startswith(f"{program.config}, line {line}: judge.model: ")
    assert "name a model that follows instructions better" in detail


@pytest.mark.parametrize(
    ("content", "verdict", "said"),
    [
        ("false", "ok", "traces without content go to http://127.0.0.1:4318"),
        ("true", "warning", "prompts and answers of every organization go to"),
    ],
)
def test_content_on_traces_is_said(
    program: Program, data_dir: Path, tmp_path: Path, content: str, verdict: str, said: str
) -> None:
    program = program.with_config(write_config(tmp_path, data_dir)).with_environment(
        **{ENDPOINT: "http://127.0.0.1:4318", CONTENT: content}
    )
    _, found, _ = _findings(program)
    assert found["telemetry"]["verdict"] == verdict
    assert said in found["telemetry"]["detail"]


@pytest.mark.parametrize(
    ("opinion", "said"),
    [
        (answer(completion("Yes")), "no log-probabilities"),
        (judge_answer_of([("Banana", -0.1), ("Apple", -3.0)]), "no probability of yes and no"),
        (refuse(401), "chat-small on the backend cluster: "),
    ],
    ids=["no log-probabilities", "neither word", "refused"],
)
async def test_a_judge_that_cannot_judge(
    program: Program,
    data_dir: Path,
    tmp_path: Path,
    judge: ScriptedJudge,
    opinion: Verb,
    said: str,
) -> None:
    judge.opinion = lambda _: opinion
    program = _over(program, tmp_path, data_dir, judge)
    code, found, ok = await asyncio.to_thread(_findings, program)
    assert (code, ok) == (1, False)
    bad = {name for name, row in found.items() if row["verdict"] == "bad"}
    assert bad == {"judge"}
    assert said in found["judge"]["detail"]


@pytest.mark.slow
@pytest.mark.engine
def test_the_engine_tells_of_itself_and_judges(
    program: Program, data_dir: Path, tmp_path: Path
) -> None:
    code, found, _ = _findings(_with_engine(program, tmp_path, data_dir))
    assert code == 1  # The backend `cluster` cannot be reached.
    local, judged = found["backend local"], found["judge"]
    # The packaged model is too small for a judge, so there is a warning.
    assert (local["verdict"], judged["verdict"]) == ("ok", "warning")
    assert local["detail"].startswith(
        "ready: smollm2-135m-instruct, 1 slots of 4096 tokens, tokenizer BPE with 49152 tokens, "
        "prefix cache with "
    )
    assert "if the answer is yes" in judged["detail"]


@pytest.mark.slow
@pytest.mark.engine
def test_a_missing_model_is_said_of_the_engine_and_the_judge(
    program: Program, data_dir: Path, tmp_path: Path
) -> None:
    program = _with_engine(program, tmp_path, data_dir)
    absent = program.with_environment(TOLLKEEPER_EMBEDDED__MODEL_PATH="absent.gguf")
    _, found, _ = _findings(absent)
    for name in ("backend local", "judge"):
        assert found[name]["verdict"] == "bad"
        assert "absent.gguf cannot be read" in found[name]["detail"]
    disabled = program.with_environment(TOLLKEEPER_EMBEDDED__ENABLED="false")
    _, found, _ = _findings(disabled)
    assert found["backend local"]["verdict"] == "warning"
    assert found["judge"]["verdict"] == "bad"
    assert "does not run" in found["judge"]["detail"]


def _with_engine(program: Program, folder: Path, data_dir: Path) -> Program:
    return program.with_config(write_config(folder, data_dir, more=_ENGINE + _LOCAL))


def test_each_fault_has_its_line(program: Program, tmp_path: Path) -> None:
    backends = """
[[backends]]
name = "nowhere"
kind = "openai"
urls = ["http://:80/v1"]
[[backends]]
name = "silent"
kind = "openai"
urls = ["http://name.invalid/v1"]
api_key_env = "NO_SUCH_KEY"
"""
    url = "postgresql://postgres@127.0.0.1:1/postgres"
    config = write_config(tmp_path, tmp_path, url=url, more=backends)
    config.write_text(
        config.read_text()
        + '[secrets]\nmaster_key = "env:NO_SUCH_SECRET"\n'
        + '[alerts.webhook]\nurl = "https://x.invalid"\nsecret = "file:absent"\n'
    )
    faulty = program.with_config(config)
    code, found, ok = _findings(faulty)
    assert code == 1
    assert not ok
    bad = {name for name, row in found.items() if row["verdict"] == "bad"}
    assert bad == {
        "master secret",
        "database",
        "backend cluster",
        "backend nowhere",
        "backend silent",
        "alerts",
    }
    assert "alerts.webhook.secret: " in found["alerts"]["detail"]
    assert "NO_SUCH_SECRET" in found["master secret"]["detail"]
    assert "cannot be reached" in found["database"]["detail"]
    assert "Connection refused" in found["backend cluster"]["detail"]
    assert "names no host" in found["backend nowhere"]["detail"]
    # A missing judge is only a warning, because the operator may have intended it.
    assert found["judge"]["verdict"] == "warning"
    shown = faulty.run("doctor")
    assert "$NO_SUCH_KEY is not set" in shown.out
    assert shown.err.startswith("tollkeeper: 7 of 10 checks failed: master secret, database")


def test_wrong_settings_are_a_finding(program: Program) -> None:
    wrong = program.with_environment(TOLLKEEPER_SERVER__PORT="x")
    code, found, ok = _findings(wrong)
    assert (code, ok) == (1, False)
    assert "server.port" in found["settings"]["detail"]


def test_a_file_that_cannot_be_read_is_a_finding(program: Program, tmp_path: Path) -> None:
    backend = """
[[backends]]
name = "files"
kind = "openai"
urls = ["https://127.0.0.1:9/v1"]
api_key_file = "no.key"
tls_ca_file = "no.pem"
"""
    config = write_config(tmp_path, tmp_path, url="postgresql://127.0.0.1:1/x", more=backend)
    shown = program.with_config(config).run("doctor").out
    for name, file in (("api_key_file", "no.key"), ("tls_ca_file", "no.pem")):
        assert f"{name}: {tmp_path / file} cannot be read" in " ".join(shown.split())


_KEY = "sk-of-this-test"
_TWO_MODELS = """
[[models]]
id = "example/odd"
backend = "cluster"
upstream_model = "chat-smal"
context_length = 8192
max_output_length = 1024
pricing = { prompt = "0" }
alternatives = [{ backend = "other", upstream_model = "gpt-9" }]
[[backends]]
name = "other"
urls = ["http://127.0.0.1:9/v1"]
"""


def _rows(program: Program) -> list[tuple[str, str]]:
    """Returns verdict and detail of each finding about the backend or about a setting of a model."""
    document = json.loads(program.run("doctor", "--json").out)
    return [
        (row["verdict"], row["detail"])
        for row in document["data"]
        if row["name"].startswith("backend ")
    ]


async def _rows_of(
    program: Program, folder: Path, data_dir: Path, url: str, more: str = ""
) -> list[tuple[str, str]]:
    config = write_config(folder, data_dir, more=more)
    text = config.read_text().replace("http://127.0.0.1:9/v1", url)
    text = text.replace('kind = "openai"', 'kind = "openai"\napi_key_env = "CLUSTER_KEY"')
    config.write_text(text)
    keyed = program.with_config(config).with_environment(CLUSTER_KEY=_KEY)
    return await asyncio.to_thread(_rows, keyed)


async def test_the_models_of_a_backend_are_compared(
    program: Program, data_dir: Path, tmp_path: Path
) -> None:
    async with Upstream(chat()) as upstream:
        upstream.list_models = model_list("chat-small", "chat-small-2026", "gpt-10")
        found = await _rows_of(program, tmp_path, data_dir, upstream.url, _TWO_MODELS)
        assert upstream.requests == []
        asked = next(r for r in upstream.list_requests if "authorization" in r.headers)
    assert asked.path == "/v1/models"
    assert asked.headers["authorization"] == f"Bearer {_KEY}"
    well = [detail.partition("; ")[2] for verdict, detail in found if verdict == "ok"]
    assert well == ["it lists 3 models"] * 2
    first, second = (detail for verdict, detail in found if verdict == "warning")
    assert "upstream_model: the backend cluster does not list a model 'chat-smal'; did you" in first
    assert "the backend other does not list a model 'gpt-9'" in second
    assert not any(_KEY in detail for _, detail in found)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_a_backend_refuses(
    program: Program, data_dir: Path, tmp_path: Path, status: int
) -> None:
    async with Upstream(chat()) as upstream:
        upstream.list_models = refuse(status, f"no such key {_KEY}")
        [(verdict, detail)] = await _rows_of(program, tmp_path, data_dir, upstream.url)
    assert verdict == "bad"
    assert f"api_key_env: {upstream.url} refuses the backend's key (status {status})" in detail
    assert _KEY not in detail


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (refuse(404), "/models gave status 404: check the path of the address; most end in /v1"),
        (
            answer(b"<html>", content_type="text/html"),
            "gave an answer that is not a list of models",
        ),
        (answer({"object": "list"}), "gave an answer that is not a list of models"),
        (refuse(503), "its models are unknown: status 503"),
        (reset_before_headers(), "its models are unknown: The backend closed the connection."),
    ],
)
async def test_a_backend_without_a_list(
    program: Program, data_dir: Path, tmp_path: Path, verb: Verb, said: str
) -> None:
    async with Upstream(chat()) as upstream:
        upstream.list_models = verb
        [(verdict, detail)] = await _rows_of(program, tmp_path, data_dir, upstream.url)
    assert verdict == "warning"
    assert said in detail


def test_a_pool_that_is_too_large_for_the_server(
    program: Program, data_dir: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, data_dir)
    config.write_text(config.read_text().replace("[database]", "[database]\npool_size = 200"))
    document = json.loads(program.with_config(config).run("doctor", "--json").out)
    rows = [row for row in document["data"] if row["name"] == "database"]
    assert [row["verdict"] for row in rows] == ["ok", "warning"]
    said = "database.pool_size: one gateway needs 220 connections (1 x 200 for its workers, 20 for"
    assert said in rows[1]["detail"]
