"""Describes planted bugs and puts them into the source.

A bug names a symbol and a change of the symbol's syntax tree, so formatting, comments and the file of
the symbol do not matter. A change that does not apply to exactly one location raises `LocationError`.
"""

import ast
import copy
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

_Nodes = list[ast.AST]
_Location = TypeVar("_Location")
_FIRST_LINE = "first line of a block"
# The fields of a block that are not in its first line.
_LINES_BELOW = ("body", "orelse", "finalbody", "handlers")


class LocationError(Exception):
    """The location of a bug is missing or ambiguous, or the change does not fit there."""


@dataclass(frozen=True)
class Bug:
    """A bug that replaces `right` by `wrong`, which are Python and are compared as syntax trees.

    Both are an expression, consecutive arguments or items (`first, second`), a keyword argument
    (`name=value`), one or more statements, or the first line of a block (`if condition:`, also for
    `elif`; `except Error:`). An empty `wrong` removes statements or a keyword argument.

    The symbol is a function, a method, a class or a constant: `name` or `Class.name`. If several modules
    have one, the end of the module's name comes first: `usage:name` or `core.usage:name`.
    """

    symbol: str
    right: str
    wrong: str
    # Files below `tests/`.
    caught_by: tuple[str, ...]
    # Further changes (symbol, right, wrong), needed if another check would catch the bug first.
    also: tuple[tuple[str, str, str], ...] = ()

    def planted(self, source: Path) -> dict[Path, str]:
        """Return the new text of each file that the bug changes, by its path below the source."""
        trees = self.changed_trees(source)
        texts = {path: ast.unparse(tree) + "\n" for path, tree in trees.items()}
        for path, text in texts.items():
            compile(text, path, "exec")
        return texts

    def changed_trees(self, source: Path) -> dict[Path, ast.Module]:
        """Return the new syntax tree of each file. This takes a third of the time of `planted`."""
        trees: dict[Path, ast.Module] = {}
        for symbol, right, wrong in ((self.symbol, self.right, self.wrong), *self.also):
            path, name = _find(symbol, source)
            if path not in trees:
                trees[path] = ast.parse((source / path).read_text())
            definition = dict(_definitions(trees[path]))[name]
            before = ast.dump(definition)
            self._change(definition, symbol, right, wrong)
            if ast.dump(definition) == before:
                raise LocationError(f"{symbol}: {wrong!r} changes nothing")
        return trees

    def _change(self, definition: ast.AST, symbol: str, right: str, wrong: str) -> None:
        old, new = _readings(right), _readings(wrong)
        common = old.keys() & new.keys()
        # An expression can also be a whole statement, and items can also be a tuple. Then only one
        # kind is searched, so that a location is not found twice.
        kinds = next(({kind} for kind in ("items", "expression") if kind in common), common)
        locations = [
            (kind, *found) for kind in kinds for found in _locations(definition, old[kind], kind)
        ]
        kind, owner, field, index = _only(locations, symbol, right)
        if index is None:
            setattr(owner, field, new[kind][0])
            return
        items: _Nodes = getattr(owner, field)
        if kind == _FIRST_LINE:
            for part in _LINES_BELOW:
                if hasattr(items[index], part):
                    setattr(new[kind][0], part, getattr(items[index], part))
        items[index : index + len(old[kind])] = new[kind]
        if field == "body" and not items:
            items.append(ast.Pass())


class SqlBug(Bug):
    """A bug that replaces a fragment of a string in the symbol. Differences in white space are ignored."""

    def _change(self, definition: ast.AST, symbol: str, right: str, wrong: str) -> None:
        fragment = re.compile(r"\s+".join(map(re.escape, right.split())))
        docstrings = [node.value for node in ast.walk(definition) if isinstance(node, ast.Expr)]
        locations = [
            (node, match)
            for node in ast.walk(definition)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if node not in docstrings
            for match in fragment.finditer(node.value)
        ]
        constant, match = _only(locations, symbol, right)
        constant.value = match.string[: match.start()] + wrong + match.string[match.end() :]


def _only(locations: list[_Location], symbol: str, searched: str) -> _Location:
    if len(locations) != 1:
        raise LocationError(f"{symbol}: found {searched!r} {len(locations)} times instead of once")
    return locations[0]


def _readings(text: str) -> dict[str, _Nodes]:
    """Return the nodes of the text for each kind of code that the text can be."""
    text = textwrap.dedent(text).strip()
    if not text:
        return {"statements": [], "keyword": []}
    if text.endswith(":"):
        is_handler = text.startswith("except")
        block = f"try: ...\n{text} ..." if is_handler else f"{text.removeprefix('el')} ..."
        [node] = ast.parse(block).body
        return {_FIRST_LINE: [*node.handlers] if isinstance(node, ast.Try) else [node]}
    statements = ast.parse(text).body
    readings: dict[str, _Nodes] = {"statements": [*statements]}
    match statements:
        case [ast.Expr(ast.Tuple(items) as value)]:
            readings |= {"expression": [value], "items": [*items]}
        case [ast.Expr(value)]:
            readings["expression"] = [value]
        case [ast.Assign([ast.Name(name)], value)]:
            readings["keyword"] = [ast.keyword(name, value)]
    return readings


def _locations(
    definition: ast.AST, nodes: _Nodes, kind: str
) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Yield each location of the nodes: their parent node, its field, and the index of the first node
    (None if the field is not a list)."""
    for owner in ast.walk(definition):
        for field, value in ast.iter_fields(owner):
            if isinstance(value, list):
                for index in range(len(value) - len(nodes) + 1):
                    found = zip(value[index:], nodes, strict=False)
                    if all(_are_equal(one, other, kind) for one, other in found):
                        yield owner, field, index
            elif len(nodes) == 1 and _are_equal(value, nodes[0], kind):
                yield owner, field, None


def _are_equal(one: object, other: ast.AST, kind: str) -> bool:
    return type(one) is type(other) and _shape(one, kind) == _shape(other, kind)


def _shape(node: ast.AST, kind: str) -> str:
    """Return a text that is the same for equal nodes."""
    if kind == _FIRST_LINE:
        node = copy.copy(node)
        for field in _LINES_BELOW:
            if hasattr(node, field):
                setattr(node, field, [])
    return ast.dump(node)


def _find(symbol: str, source: Path) -> tuple[Path, str]:
    """Return the file that has the symbol, and the symbol's name there."""
    module, _, name = symbol.rpartition(":")
    found = [
        path
        for path, text in _texts(source).items()
        if not module or f".{'.'.join(path.with_suffix('').parts)}".endswith(f".{module}")
        if all(part in text for part in name.split("."))
        for defined in _names(source, path)
        if defined == name
    ]
    if len(found) != 1:
        files = ", ".join(map(str, found)) or "no file"
        raise LocationError(f"{symbol} must be in one file once, and is in {files}")
    return found[0], name


@cache
def _texts(source: Path) -> dict[Path, str]:
    return {path.relative_to(source): path.read_text() for path in sorted(source.rglob("*.py"))}


@cache
def _names(source: Path, path: Path) -> list[str]:
    return [name for name, _ in _definitions(ast.parse(_texts(source)[path]))]


def _definitions(
    tree: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name, node
            case ast.ClassDef(name=name):
                yield prefix + name, node
                yield from _definitions(node, f"{prefix}{name}.")
            case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
                yield prefix + name, node
