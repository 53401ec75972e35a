"""Tests that every test, class and function that the documents name exists."""

import ast
import functools
import re
from pathlib import Path

from tests.support.documents import DOCUMENTS, ROOT, shown
from tests.support.tables import each

_CONFORMANCE = ROOT / "docs" / "conformance.md"
_NAMED = re.compile(r"`tests/([\w/]+\.py)(?:::(\w+))?`")
# The page about conformance leaves out the folder `tests/`.
_NAMED_SHORT = re.compile(r"`(?:tests/)?([\w/]+\.py)(?:::(\w+))?`")

# `folder/file.name` or `folder/file.Class.method`, below src/tollkeeper.
_CODE = re.compile(r"`((?:[a-z]\w*/)+[a-z]\w*)\.(?!py`)([A-Za-z_]\w*)(?:\.(\w+))?`")
_SOURCE = ROOT / "src" / "tollkeeper"
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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


def _defines(body: list[ast.stmt], *names: str) -> bool:
    """Returns whether the first name is defined in `body`, and each further name inside of the previous."""
    if not names:
        return True
    found = [node for node in body if isinstance(node, _DEFINITIONS) and node.name == names[0]]
    return any(_defines(node.body, *names[1:]) for node in found)


@each("path", DOCUMENTS, ids=shown)
def test_named_code_exists(path: Path) -> None:
    missing = []
    for file, *names in _CODE.findall(path.read_text()):
        source, wanted = _SOURCE / f"{file}.py", [name for name in names if name]
        if not (_SOURCE / file.partition("/")[0]).is_dir():
            continue  # The name is that of a file in another folder.
        if not source.exists() or not _defines(ast.parse(source.read_text()).body, *wanted):
            missing.append(".".join([file, *wanted]))
    assert missing == []
