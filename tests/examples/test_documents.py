"""Tests every code block, command and link of the documents, as far as this needs no gateway."""

import copy
import importlib.util
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.support.command_lines import check_mention, parse_line
from tests.support.documents import (
    DOCUMENTS,
    ROOT,
    Block,
    all_blocks,
    anchors_of,
    links_of,
    mentions_of,
    shown,
)
from tests.support.proof import Proof
from tests.support.tables import each
from tollkeeper.setup import build_catalog
from tollkeeper.setup.settings import Settings

_LANGUAGES = {"js", "json", "python", "sh", "sql", "text", "toml"}
_EXEMPTIONS = {"python": "not-run: ", "sh": "not-run: ", "toml": "not-settings: "}
_MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
# The text after this is a command line of tollkeeper.
_IN_CONTAINER = " exec tollkeeper "
_FILES = re.compile(r"[\w.-]+\.(?:csv|jsonl|json|toml|gz)\b")
# Values that complete a fragment of a settings file.
_REST_OF_MODEL = {"backend": "rest", "upstream_model": "m", "context_length": 8192}
_REST_OF_BACKEND = {"kind": "openai", "urls": ["http://127.0.0.1:9/v1"]}


def _named(blocks: list[Block]) -> list[Any]:
    return [pytest.param(block, id=block.place) for block in blocks]


def test_every_language_is_one_that_a_test_knows() -> None:
    found = [block.place for block in all_blocks() if block.language not in _LANGUAGES]
    assert found == []


def test_what_is_not_tested_says_why(proof: Proof) -> None:
    exempt = [block for block in all_blocks() if block.exemption]
    for block in exempt:
        begin = _EXEMPTIONS[block.language]
        assert block.exemption.startswith(begin), block.place
        assert len(block.exemption) > len(begin) + 10, block.place
        proof.row("blocks of documents that no test runs", at=block.place, why=block.exemption)


@each("block", _named(all_blocks("sh")))
def test_commands_exist(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _FILES.findall(block.text):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert block.commands
    for command in block.commands:
        words = shlex.split(command, comments=True)
        if words[0].rpartition("/")[2] == "tollkeeper":
            parse_line(command)
        elif _IN_CONTAINER in command:
            parse_line(command.partition(_IN_CONTAINER)[2])
        elif words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= _MAKE_TARGETS
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]) is not None
        else:
            # `test_guides` runs the other commands, unless the guide says why not.
            guide = block.place.startswith(("docs/guides/", "README.md"))
            assert guide or not block.runs, f"{block.place}: no test runs {words[0]!r}"


@each("path", DOCUMENTS, ids=shown)
def test_commands_in_sentences_exist(path: Path) -> None:
    for mention in mentions_of(path):
        check_mention(mention)


@each("block", _named(all_blocks("json")))
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


@each("block", _named(all_blocks("python")))
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.place, "exec")


def _whole_settings(fragment: dict[str, Any]) -> dict[str, Any]:
    """Returns the fragment with the values that it needs to be a whole file. Its own values stay."""
    whole = copy.deepcopy(fragment)
    for model in whole.get("models", []):
        for name, value in _REST_OF_MODEL.items():
            model.setdefault(name, value)
        model.setdefault("max_output_length", model["context_length"] // 4)
    for backend in whole.get("backends", []):
        if "preset" not in backend:
            backend.setdefault("kind", "openai")
    declared = {backend["name"] for backend in whole.get("backends", [])}
    named = {model["backend"] for model in whole.get("models", [])}
    named |= {
        other["backend"] for m in whole.get("models", []) for other in m.get("alternatives", [])
    }
    named |= {whole["judge"]["backend"]} if "backend" in whole.get("judge", {}) else set()
    missing = [{"name": name, **_REST_OF_BACKEND} for name in sorted(named - declared)]
    return {**whole, "backends": [*whole.get("backends", []), *missing]}


@each("block", _named(all_blocks("toml")))
def test_settings_load(block: Block) -> None:
    digest = "0" * 64
    fragment = tomllib.loads(block.text.replace('token_sha256 = "…"', f'token_sha256 = "{digest}"'))
    if not block.exemption:
        settings = Settings(**_whole_settings(fragment))
        for model in settings.models:
            assert build_catalog(settings).find(model.id).id == model.id


@each("block", _named(all_blocks("sql")))
def test_queries_fit_the_tables(block: Block, conninfo: str) -> None:
    query = block.text.replace("'…'", f"'{UUID(int=0)}'")
    with psycopg.connect(conninfo) as connection:
        connection.execute(b"EXPLAIN " + query.encode())


@each("path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=shown)
def test_links_lead_somewhere(path: Path) -> None:
    for link in links_of(path):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{shown(path)}: {link}"
        assert target.is_relative_to(ROOT), f"{shown(path)}: {link}"
        if anchor:
            assert anchor in anchors_of(target), f"{shown(path)}: {link}"


def test_the_index_names_every_document() -> None:
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in links_of(index)}
    others = {path for path in DOCUMENTS if path.parent.name != "decisions"}
    assert others - named == {ROOT / "README.md", index}
