"""Tests that the file that `init` writes and the documents contain every setting with its default, and
that the program reads every setting."""

import ast
import dataclasses
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tests.support.tables import each
from tollkeeper.core.catalog import Model
from tollkeeper.providers.config import BackendConfig
from tollkeeper.setup.settings import DEFAULT_FILE, Settings, load_settings

_ROOT = Path(__file__).parents[3]
_SOURCE = _ROOT / "src" / "tollkeeper"
# The sections that are lists of tables.
_REPEATED = ("backends", "models")


def _section(annotation: Any) -> type[BaseModel]:
    """Returns the section class of an annotation, which may be optional or a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [part for part in typing.get_args(annotation) if not _is_filler(part)]
    assert len(inner) == 1, annotation
    return _section(inner[0])


def _is_filler(part: Any) -> bool:
    return part is type(None) or isinstance(part, types.EllipsisType)


_SECTIONS = {name: _section(field.annotation) for name, field in Settings.model_fields.items()}
_SETTINGS = [(section, name) for section, kind in _SECTIONS.items() for name in kind.model_fields]
_NAMES = [f"{section}.{name}" for section, name in _SETTINGS]


def _default(section: str, name: str) -> Any:
    return _SECTIONS[section].model_fields[name].default


def test_there_are_few_settings() -> None:
    """A setting should exist only if operators can choose its value better than the authors."""
    assert len(_NAMES) <= 101


# The file that `tollkeeper init` writes.


def _part_of_file(section: str) -> str:
    """Returns the lines of a section, and of its example in a comment."""
    heading = re.escape(f"[[{section}]]" if section in _REPEATED else f"[{section}]")
    text = DEFAULT_FILE.read_text()
    parts = re.findall(rf"^(?:# )?{heading}.*?(?=^(?:# )?\[|\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n".join(parts)


def test_every_setting_is_in_the_default_file() -> None:
    for section, name in _SETTINGS:
        line = re.compile(rf"^(?:# )?{name} = ", re.MULTILINE)
        assert line.search(_part_of_file(section)), f"{section}.{name}"


def test_the_default_file_has_the_defaults() -> None:
    written = tomllib.loads(DEFAULT_FILE.read_text())
    for section, name in _SETTINGS:
        if section in _REPEATED or _default(section, name) is PydanticUndefined:
            continue
        validate, required = _SECTIONS[section].model_validate, _required(section)
        with_value = validate({**required, name: written[section][name]})
        assert with_value == validate(required), f"{section}.{name}"


def _required(section: str) -> dict[str, Any]:
    fields = _SECTIONS[section].model_fields
    return {name: "x" for name, field in fields.items() if field.is_required()}


def test_examples_in_comments_are_right(tmp_path: Path) -> None:
    path = tmp_path / "tollkeeper.toml"
    path.write_text(re.sub(r"^# (?=\[\[|\w+ = )", "", DEFAULT_FILE.read_text(), flags=re.MULTILINE))
    _, cluster = load_settings(path).backends
    bare = type(cluster)(name=cluster.name, urls=cluster.urls)
    for name in type(cluster).model_fields:
        if name not in ("name", "kind", "urls", "api_key_env", "tokenize_path"):
            assert getattr(cluster, name) == getattr(bare, name), name


# docs/configuration.md.


def _rows() -> Iterator[tuple[str, list[str], str]]:
    """Yields the section, the names and the defaults of each table row with settings."""
    section = ""
    for line in (_ROOT / "docs" / "configuration.md").read_text().splitlines():
        if line.startswith("## "):
            found = re.search(r"\[\[(\w+)\]\]", line)
            section = found[1] if found else ""
        cells = [cell.strip() for cell in line.split("|")]
        names = re.findall(r"`([\w.]+)`", cells[1]) if len(cells) == 5 else []
        if names:
            yield section, names, cells[2]


def _documented() -> dict[str, str]:
    """Returns every documented setting with the text of its default."""
    found = {}
    for section, names, defaults in _rows():
        shown = re.findall(r"`([^`]*)`", defaults)
        for number, name in enumerate(names):
            whole = f"{section}.{name}" if section else name
            found[whole] = shown[number] if len(shown) == len(names) else (shown or [defaults])[0]
    return found


def test_the_documents_have_no_setting_that_does_not_exist() -> None:
    assert set(_documented()) == set(_NAMES)


def test_the_documents_have_the_defaults() -> None:
    documented = _documented()
    wrong = [
        f"{section}.{name}"
        for section, name in _SETTINGS
        if not _is_shown(_default(section, name), documented[f"{section}.{name}"], section)
    ]
    assert wrong == []


def _is_shown(default: Any, shown: str, section: str) -> bool:
    if shown == "the published names":
        return True
    if default is PydanticUndefined or (section == "models" and default in ("", 0)):
        return shown == ""
    if default in ("", ()) and shown in ("empty", ""):
        return True
    if shown == "zeros":
        return bool(default == {})
    if isinstance(default, BaseModel):
        return shown == "{}" and default == type(default)()
    return shown in (str(default), json.dumps(default, default=str), f"./{default}")


# The program.


def _sections_by_class() -> dict[str, str]:
    return {kind.__name__: section for section, kind in _SECTIONS.items()}


def _section_of(node: ast.expr) -> str | None:
    """Returns the section of an expression like `settings.limits` or `self._settings.judge`, or None."""
    if isinstance(node, ast.Attribute) and node.attr in _SECTIONS:
        owner = node.value
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if "settings" in name or name in ("alone", "changed"):
            return node.attr
    return None


def _names_of_sections(tree: ast.Module) -> dict[str, set[str]]:
    """Returns the sections of each variable that gets a section by annotation, assignment or loop."""
    found: dict[str, set[str]] = {}
    classes = _sections_by_class()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name):
            if node.annotation.id in classes:
                found.setdefault(node.arg, set()).add(classes[node.annotation.id])
            continue
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            target, value = node.target, node.iter
        else:
            continue
        section = _section_of(value)
        if isinstance(target, ast.Name) and section is not None:
            found.setdefault(target.id, set()).add(section)
    return found


def _read_in(tree: ast.Module) -> Iterator[str]:
    names = _names_of_sections(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            sections = {_section_of(node.value)} - {None}
            if isinstance(node.value, ast.Name):
                sections |= names.get(node.value.id, set())
            yield from (f"{section}.{node.attr}" for section in sections)


# What is built from a section: a field with the name of a setting gets its value.
_BUILT = {"backends": BackendConfig, "models": Model}


def test_every_setting_is_read_by_the_program() -> None:
    read: set[str] = set()
    attributes: set[str] = set()
    for path in _SOURCE.rglob("*.py"):
        if path.parent.name != "settings":
            tree = ast.parse(path.read_text())
            read |= set(_read_in(tree))
            attributes |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for section, built in _BUILT.items():
        fields = {field.name for field in dataclasses.fields(built) if field.init}
        read |= {f"{section}.{name}" for name in fields & attributes}
    assert set(_NAMES) - read == set()


@each(
    ("program", "read"),
    [
        ("settings.server.port", {"server.port"}),
        ("self._settings.limits.drains", {"limits.drains"}),
        ("limits = settings.limits\nlimits.drains", {"limits.drains"}),
        ("def f(backend: BackendSettings): backend.urls", {"backends.urls"}),
        ("for model in settings.models: model.id", {"models.id"}),
        ("[backend.name for backend in settings.backends]", {"backends.name"}),
        ("server.port", set()),
        ("config.server.port", set()),
    ],
)
def test_what_counts_as_reading(program: str, read: set[str]) -> None:
    assert set(_read_in(ast.parse(program))) == read
