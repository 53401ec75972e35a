"""Tests `tollkeeper openapi`."""

import json
from dataclasses import replace
from pathlib import Path

from tests.support.program import Program
from tollkeeper.faces.openapi import document


def test_prints_the_document_itself(program: Program) -> None:
    found = program.json("openapi")
    assert found == json.loads(json.dumps(document()))
    assert json.loads(program.run("openapi").out) == found


def test_the_document_has_the_operators_names_and_extensions(program: Program) -> None:
    named = program.with_environment(
        TOLLKEEPER_AUTH__CUSTOMER_KEY_HEADER="x-acme-key", TOLLKEEPER_EXTENSIONS__MESSAGES="true"
    )
    found = named.json("openapi")
    schemes = found["components"]["securitySchemes"]
    assert schemes["customerHeaderKey"]["name"] == "x-acme-key"
    assert set(found["paths"]) == {*document()["paths"], "/v1/messages"}


def test_without_settings_the_document_has_the_usual_names(
    program: Program, tmp_path: Path
) -> None:
    found = replace(program, folder=tmp_path).raw("openapi", "--json")
    assert json.loads(found.out) == json.loads(json.dumps(document()))
    assert list(tmp_path.iterdir()) == []
