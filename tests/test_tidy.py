"""Tests the rules of this repository: sizes, imports, exceptions, dead modules, folders of tests,
documents, and texts that no file may contain."""

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faces.authorization_cases import ROWS, cells
from tollkeeper.faces.routes import EXTENSION_ROUTES, ROUTES
from tollkeeper.http.envelope import ERROR_TABLE

_ROOT = Path(__file__).parents[1]
_SOURCE = _ROOT / "src" / "tollkeeper"
_FUNCTION_LINES_MAX = 70

# Files that may catch exceptions of any kind, because their callers could not handle them better.
_OWNERS_OF_BROAD_EXCEPT = {
    "src/tollkeeper/faces/app.py",  # the outermost frame of a request
    "src/tollkeeper/entry/supervisor.py",  # the owner of the readiness watch
    "src/tollkeeper/providers/identity/credential.py",  # an exception of a provider's library
    "src/tollkeeper/core/runtime/batches.py",  # the owner of its own task
    "src/tollkeeper/money/holds/group_writer.py",  # passes it on to the waiting caller
    "src/tollkeeper/tenants/key_lookups.py",  # passes it on to the waiting callers
    "src/tollkeeper/money/holds/service.py",  # raised again for the organization that causes it
    "src/tollkeeper/setup/upkeep.py",  # the owner of every chore
}

# Imports take most of a command's time, so these files import modules only when a command runs.
_COMMANDS = re.compile(r"src/tollkeeper/(entry/commands/|setup/services\.py)")

# Folders of tests that mirror no folder of the source, with their purpose.
_OTHER_TEST_FOLDERS = {
    "contract",  # the OpenAPI document, and Schemathesis against it
    "examples",  # the examples of CONTRIBUTING.md and of the documents
    "fuzz",  # parsers of untrusted bytes, with coverage-guided input
    "journeys",  # tests across several folders of the source; each folder is named after its topic
    "proofs",  # tests that are longer with `--prove`
    "support",  # code that tests share
}
_MIRRORED = {name: _ROOT / name for name in ("bench", "deploy", "tools")}

# These modules are started from outside; no module imports them.
_ENTRY_POINTS = {
    "tollkeeper.__main__",
    "tollkeeper.entry.commands.main",
    "tollkeeper.database.migrations.env",
}
_MIGRATIONS = "tollkeeper.database.migrations.versions."

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _File:
    """Contains the parts of one file that the rules check, found in one pass over its syntax tree."""

    path: Path
    docstring: str | None
    is_empty: bool
    functions: list[Function] = field(default_factory=list)
    # Imports inside functions, as file, line number and text of the line.
    late_imports: list[str] = field(default_factory=list)
    broad_handlers: list[ast.ExceptHandler] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    imported_at_the_top: set[str] = field(default_factory=set)
    # String constants, because a module may start another module by its name.
    texts: set[str] = field(default_factory=set)

    @property
    def shown(self) -> str:
        return self.path.relative_to(_ROOT).as_posix()

    @property
    def is_ruled(self) -> bool:
        return not self.path.is_relative_to(_ROOT / "bench")


def _read(path: Path) -> _File:
    text = path.read_text()
    lines, tree = text.splitlines(), ast.parse(text)
    found = _File(path, ast.get_docstring(tree), is_empty=not text.strip())
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, is_late = waiting.pop()
        if isinstance(node, Function):
            found.functions.append(node)
            is_late = True
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = _names_of(node)
            found.imported.update(names)
            if node in tree.body:
                found.imported_at_the_top.update(names)
            if is_late:
                found.late_imports.append(f"{found.shown}:{node.lineno}: {lines[node.lineno - 1]}")
        elif isinstance(node, ast.ExceptHandler):
            if _is_broad(node) and not _raises_again(node):
                found.broad_handlers.append(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.texts.add(node.value)
        waiting += [(child, is_late) for child in ast.iter_child_nodes(node)]
    return found


def _names_of(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if node.module is None:
        return set()
    return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}


@functools.cache
def _files() -> list[_File]:
    folders = (_SOURCE, _ROOT / "tests", _ROOT / "bench")
    return [_read(path) for folder in folders for path in sorted(folder.rglob("*.py"))]


def _ruled_files() -> list[_File]:
    return [file for file in _files() if file.is_ruled]


def test_functions_fit_on_a_screen() -> None:
    long = []
    for file in _ruled_files():
        for function in file.functions:
            assert function.end_lineno is not None
            length = function.end_lineno - function.lineno + 1
            if length > _FUNCTION_LINES_MAX:
                long.append(f"{file.shown}: {function.name} has {length} lines")
    assert long == []


def test_imports_are_at_the_top_or_have_a_reason() -> None:
    reason = re.compile(r"#(?! noqa(: \w+)?\s*$) *\S")
    late = [
        line
        for file in _ruled_files()
        if not _COMMANDS.match(file.shown)
        for line in file.late_imports
    ]
    assert [line for line in late if not reason.search(line)] == []


def _is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"Exception", "BaseException"})


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Returns whether the handler ends with a raise, so that it swallows nothing."""
    return isinstance(handler.body[-1], ast.Raise)


def test_broad_except_only_where_it_is_owned() -> None:
    found = {
        f"{file.shown}:{handler.lineno}"
        for file in _ruled_files()
        for handler in file.broad_handlers
        if file.shown not in _OWNERS_OF_BROAD_EXCEPT
    }
    assert found == set()


def test_owners_of_broad_except_still_need_it() -> None:
    needed = {file.shown for file in _ruled_files() if file.broad_handlers}
    assert needed >= _OWNERS_OF_BROAD_EXCEPT


def _mirrors_a_folder(folder: Path) -> bool:
    first, *rest = folder.relative_to(_ROOT / "tests").parts
    mirrored = _MIRRORED.get(first, _SOURCE / first).joinpath(*rest)
    return first in _OTHER_TEST_FOLDERS or mirrored.is_dir()


def test_every_folder_of_tests_mirrors_one_of_the_source() -> None:
    folders = {path.parent for path in (_ROOT / "tests").rglob("*.py")} - {_ROOT / "tests"}
    assert [str(folder) for folder in sorted(folders) if not _mirrors_a_folder(folder)] == []
    assert {name for name in _OTHER_TEST_FOLDERS if not (_ROOT / "tests" / name).is_dir()} == set()


def test_tests_lie_in_folders() -> None:
    """The only exception is this file, which tests the whole repository."""
    assert [path.name for path in (_ROOT / "tests").glob("test_*.py")] == ["test_tidy.py"]


def test_no_module_of_support_is_dead() -> None:
    """A test imports each module, or names it as a plugin."""
    support = _ROOT / "tests" / "support"
    using = [file for file in _files() if not file.path.is_relative_to(_SOURCE)]
    used = set().union(*(file.imported | file.texts for file in using))
    found = [
        file.shown
        for file in using
        if file.path.is_relative_to(support) and file.path.name != "__init__.py"
        if ".".join(file.path.relative_to(_ROOT).with_suffix("").parts) not in used
    ]
    assert found == []


def test_every_module_of_support_is_listed() -> None:
    """The docstring of the package lists the modules for new contributors."""
    folder = _ROOT / "tests" / "support"
    listed = set(re.findall(r"\w+", (folder / "__init__.py").read_text()))
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {name for name in names if not name.endswith("_fixtures")} - listed == set()


def test_tests_are_found_without_reading_an_sdk() -> None:
    """Importing an SDK takes longer than collecting all tests, so tests use `tests.support.sdks`."""
    found = {
        file.shown
        for file in _ruled_files()
        if file.path.is_relative_to(_ROOT / "tests")
        and file.path != _ROOT / "tests/support/sdks.py"
        if file.path.parent != _ROOT / "tests/journeys/clients/python"
        for name in file.imported_at_the_top
        if name.partition(".")[0] in {"anthropic", "openai"}
    }
    assert found == set()


def test_every_route_has_its_authorization_cases() -> None:
    assert {(route.method, route.path) for route in (*ROUTES, *EXTENSION_ROUTES)} == set(ROWS)
    tried = {(cell.endpoint.operation, cell.key_kind, cell.profile) for cell in cells()}
    profiles = {(kind, profile) for _, kind, profile in tried}
    for route in ROUTES:
        assert {(route.operation, *rest) for rest in profiles} <= tried


def _module_of(path: Path) -> str:
    parts = path.relative_to(_SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_module_is_dead() -> None:
    modules = {
        _module_of(file.path): file for file in _files() if file.path.is_relative_to(_SOURCE)
    }
    packages = {_module_of(path) for path in _SOURCE.rglob("__init__.py")}
    alive = set(_ENTRY_POINTS).union(*(file.imported | file.texts for file in modules.values()))
    # The program imports the module of a command when the command is called.
    alive |= {
        f"tollkeeper.entry.commands.{name}"
        for name in modules["tollkeeper.entry.commands.main"].texts
    }
    dead = set(modules) - packages - alive
    assert {module for module in dead if not module.startswith(_MIGRATIONS)} == set()


def test_every_module_says_what_it_owns() -> None:
    silent = [f.shown for f in _ruled_files() if f.docstring is None and not f.is_empty]
    assert silent == []


def _tracked_texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=_ROOT, check=True, capture_output=True, timeout=60
    )
    for name in listed.stdout.decode().split("\0"):
        path = _ROOT / name
        if name and path.is_file():
            content = path.read_bytes()
            if b"\0" not in content:
                yield name, content.decode("utf-8", "replace")


# The patterns are split, because otherwise the test would find them in this file.
_UNSPEAKABLE = re.compile(
    "|".join(
        (
            "py" + r"pi\.org",
            "python" + r"hosted\.org",
            r"https?://[^\s\"'<>]*/" + "simple" + r"\b",
            "--(?:extra-)?" + "index-url",
            r"(?<![\w.])/" + r"(?:root|home|Users)/\w",
        )
    )
)


def test_no_index_hosts_and_no_home_folders_in_tracked_files() -> None:
    found = [
        f"{name}: {match.group()}"
        for name, text in _tracked_texts()
        for match in _UNSPEAKABLE.finditer(text)
    ]
    assert found == []


def test_every_open_question_has_its_row() -> None:
    text = (_ROOT / "docs" / "open-questions.md").read_text()
    rows = re.findall(r"^\| Q(\d+) \|(.*)\|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 38))
    for _, cells_of_row in rows:
        assert all(cell.strip() for cell in cells_of_row.split("|"))


def test_the_documented_error_table_is_the_one_of_the_code() -> None:
    text = (_ROOT / "docs" / "open-questions.md").read_text()
    rows = re.findall(r"^\| (\d{3})\b[^|]*\| (\w+) \| ([\w, ]+) \|$", text, re.MULTILINE)
    documented = [(int(row[0]), row[1], code) for row in rows for code in row[2].split(", ")]
    assert documented == sorted(documented, key=lambda row: row[0])
    in_code = [(words.status, words.type, words.code) for words in ERROR_TABLE.values()]
    assert sorted(documented) == sorted(in_code)
