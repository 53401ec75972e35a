"""Tests `tollkeeper openapi`."""

import json

from tests.support.program import Program
from tollkeeper.api.openapi import document


def test_prints_the_document_itself(program: Program) -> None:
    found = program.json("openapi")
    assert found == json.loads(json.dumps(document()))
    assert json.loads(program.run("openapi").out) == found
