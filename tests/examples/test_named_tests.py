"""Every test that the documents name exists, so that what they say is held is held."""

import ast
import functools
import re
from pathlib import Path

from tests.support.documents import DOCUMENTS, ROOT, shown
from tests.support.tables import each

_CONFORMANCE = ROOT / "docs" / "conformance.md"
_NAMED = re.compile(r"`tests/([\w/]+\.py)(?:::(\w+))?`")
# The page about conformance leaves out the folder.
_NAMED_SHORT = re.compile(r"`(?:tests/)?([\w/]+\.py)(?:::(\w+))?`")


@functools.cache
def _tests_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, functions)}


def _missing(path: Path) -> list[str]:
    pattern = _NAMED_SHORT if path == _CONFORMANCE else _NAMED
    missing = []
    for file, test in pattern.findall(path.read_text()):
        named = ROOT / "tests" / file
        if not named.exists() or (test and test not in _tests_of(named)):
            missing.append(f"{file}::{test}")
    return missing


@each("path", DOCUMENTS, ids=shown)
def test_named_tests_exist(path: Path) -> None:
    assert _missing(path) == []


def test_conformance_names_many() -> None:
    assert len(_NAMED_SHORT.findall(_CONFORMANCE.read_text())) > 100
