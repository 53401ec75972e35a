"""Tests that the examples in CONTRIBUTING.md are those of test_writing_tests.py, word for word."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.tables import each

_CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
_EXAMPLES = Path(__file__).with_name("test_writing_tests.py")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Code:
    """A piece of Python: the import of each imported name, the text of each function, and all used names."""

    imported: dict[str, str]
    defined: dict[str, str]
    used: frozenset[str]


def _read(text: str) -> Code:
    tree = ast.parse(text)
    imported: dict[str, str] = {}
    defined: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                statement = ast.unparse(
                    ast.ImportFrom(node.module, [alias], 0)
                    if isinstance(node, ast.ImportFrom)
                    else ast.Import([alias])
                )
                imported[alias.asname or alias.name] = statement
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(found.lineno for found in node.decorator_list)])
            defined[node.name] = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
        else:
            assert isinstance(node, ast.Expr), "an example consists of functions"
    names = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return Code(imported, defined, frozenset(names))


def _shown() -> list[str]:
    section = _CONTRIBUTING.read_text().partition("## Writing tests")[2].partition("\n## ")[0]
    return _BLOCK.findall(section)


@each("shown", _shown())
def test_what_is_shown_is_what_runs(shown: str) -> None:
    block, examples = _read(shown), _read(_EXAMPLES.read_text())
    assert block.defined
    for name, text in block.defined.items():
        assert text == examples.defined.get(name)
    for name, statement in block.imported.items():
        assert statement == examples.imported.get(name)


@each("shown", _shown())
def test_what_is_shown_has_its_imports(shown: str) -> None:
    block, examples = _read(shown), _read(_EXAMPLES.read_text())
    assert set(block.imported) == block.used & set(examples.imported)


def test_everything_that_runs_is_shown() -> None:
    shown = [name for text in _shown() for name in _read(text).defined]
    assert shown == list(_read(_EXAMPLES.read_text()).defined)
