"""Finds a setting's readable name, and the line or the variable that sets it, for messages."""

import os
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tollkeeper.setup.settings.schema import ENV_PREFIX, environment_settings

# The path to a setting: ("server", "port"). An entry of a list is a position or, in `backends` and `models`,
# also a name or id: ("models", "example/chat", "pricing").
Place = tuple[str | int, ...]
# Lists whose entries have names, and the setting with the name.
_NAME_SETTINGS = {"backends": "name", "models": "id"}
_SHOWN_LENGTH_MAX = 80


class SettingsError(Exception):
    """The message says what is allowed, and shows the value unless it may be secret. `at` is the setting, if
    it's a single one."""

    def __init__(self, message: str, at: Place = ()) -> None:
        super().__init__(f"{_shown_name(at)}: {message}" if at else message)
        self.message = message
        self.at = at


class SettingsSource:
    """As the operator wrote them, in the file and in the environment."""

    def __init__(self, path: Path | None, text: str, document: Mapping[str, Any]) -> None:
        # None: the packaged file, whose lines the operator hasn't written, so messages don't name them.
        self._path = path
        self._document = document
        self._lines = {} if path is None else _lines(text)
        self._environment = environment_settings()

    def origin(self, at: Place) -> tuple[str, str]:
        """What sets exactly this setting: "environment" and the variable, "file" and the line, or "default"
        and ""."""
        if at in set(_places(self._environment)):
            return "environment", _variable(at)
        # A variable for a list hides the file's whole list.
        if at in self._lines and not isinstance(self._environment.get(str(at[0])), list):
            return "file", f"{self._path}, line {self._lines[at]}"
        return "default", ""

    def located(self, error: SettingsError) -> str:
        """With the setting's name and its line or variable."""
        return self.explain(error.at, error.message) if error.at else str(error)

    def explain(self, at: Place, words: str, value: str = "") -> str:
        """From the line or variable, the name, the value (such as " = 5") and `words`."""
        document = self._environment if at[0] in self._environment else self._document
        prefix = self._message_prefix(_by_position(at, document))
        return f"{prefix}{_shown_name(_by_name(at, document))}{value}: {words}"

    def _message_prefix(self, at: Place) -> str:
        """The variable or line of this setting, or of the table or list around it, or ""."""
        in_environment = _longest_known_prefix(at, set(_places(self._environment)))
        in_file = _longest_known_prefix(at, self._lines)
        # A variable for a list replaces the file's. Elsewhere it replaces single settings, so whichever
        # matches more of `at` counts.
        is_list = isinstance(self._environment.get(str(at[0])), list)
        if is_list or len(in_environment) >= len(in_file):
            variable = _variable(at)
            if variable:
                return f"{variable}: "
        return f"{self._path}, line {self._lines[in_file]}: " if in_file else ""


def _shown_name(at: Place) -> str:
    section, *rest = at
    if section not in _NAME_SETTINGS or not rest:
        return ".".join(map(str, at))
    entry, *setting = rest
    label = f"number {entry + 1}" if isinstance(entry, int) else repr(entry[:_SHOWN_LENGTH_MAX])
    name = f"{section} {label}"
    return f"{name}: {'.'.join(map(str, setting))}" if setting else name


def _by_name(at: Place, document: Mapping[str, Any]) -> Place:
    """For a backend or model, if it has one."""
    names = _entry_names(at, document)
    if len(at) > 1 and isinstance(at[1], int) and at[1] < len(names) and names[at[1]]:
        return (at[0], names[at[1]], *at[2:])
    return at


def _by_position(at: Place, document: Mapping[str, Any]) -> Place:
    """For a backend or model."""
    names = _entry_names(at, document)
    if len(at) > 1 and at[1] in names:
        return (at[0], names.index(str(at[1])), *at[2:])
    return at


def _entry_names(at: Place, document: Mapping[str, Any]) -> list[str]:
    """The names or ids of all entries, "" without one, if the place is in such a list."""
    key, entries = _NAME_SETTINGS.get(str(at[0])), document.get(str(at[0]))
    if key is None or not isinstance(entries, list):
        return []
    names = [entry.get(key) if isinstance(entry, dict) else None for entry in entries]
    return [name if isinstance(name, str) else "" for name in names]


def _variable(at: Place) -> str:
    """That sets this place, the table or list around it, or an entry inside; otherwise ""."""
    variables = {name.upper(): name for name in os.environ}
    for length in range(len(at), 0, -1):
        name = f"{ENV_PREFIX}{'__'.join(map(str, at[:length]))}".upper()
        if name in variables:
            return variables[name]
    part = f"{ENV_PREFIX}{'__'.join(map(str, at))}__".upper()
    return next((variables[name] for name in sorted(variables) if name.startswith(part)), "")


def _longest_known_prefix(at: Place, known: Collection[Place]) -> Place:
    lengths = range(len(at), 0, -1)
    return next((at[:length] for length in lengths if at[:length] in known), ())


def _places(value: Any, at: Place = ()) -> Iterator[Place]:
    """`at` and all places within."""
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else ()
    for key, entry in enumerate(value) if isinstance(value, list) else inner:
        yield from _places(entry, (*at, key))


def _lines(text: str) -> dict[Place, int]:
    """Where each setting of a valid file begins."""
    lines: dict[Place, int] = {}
    table: Place = ()
    # The last position so far in each list of tables.
    entries: dict[Place, int] = {}
    for begin, statement in _statements(text):
        parsed = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _table_place(parsed, entries)
            places = [table[:length] for length in range(1, len(table) + 1)]
        else:
            places = [(*table, *place) for place in _places(parsed)]
        for place in places:
            lines.setdefault(place, begin)
    return lines


def unfinished_line(text: str) -> int:
    """Of the first statement that can't be parsed."""
    *_, (begin, _) = _statements(text)
    return begin


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """With the line where it begins. The TOML library reports no positions, so lines are added until it can
    parse them. An end that can't be parsed comes last."""
    statement, begin = "", 1
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        statement += f"{line}\n"
        try:
            tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        yield begin, statement
        statement, begin = "", number + 1
    if statement:
        yield begin, statement


def _table_place(header: Mapping[str, Any], entries: dict[Place, int]) -> Place:
    """`entries` has the last position in each list of tables; a header like [[models]] increments it."""
    at: Place = ()
    inner: Any = header
    while isinstance(inner, dict) and inner:
        ((key, inner),) = inner.items()
        at = (*at, key)
        if isinstance(inner, list):
            entries[at] = entries.get(at, -1) + 1
        if at in entries:
            at = (*at, entries[at])
    return at
