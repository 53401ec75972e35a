"""Locates a setting: its name for people, and its line in the settings file or its variable."""

import os
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tollkeeper.settings.schema import ENV_PREFIX, environment_settings

# The parts of a setting's name. A list entry is identified by its position, and a backend or model
# also by its name or id.
Place = tuple[str | int, ...]
_OWN_NAMES = {"backends": "name", "models": "id"}
_SHOWN_LENGTH_MAX = 80


class SettingsError(Exception):
    """Reports an invalid setting. The message says which values are allowed, and shows the value
    unless it may be secret. `at` is the setting if the message concerns a single one."""

    def __init__(self, message: str, at: Place = ()) -> None:
        super().__init__(f"{_shown_name(at)}: {message}" if at else message)
        self.message = message
        self.at = at


class SettingsSource:
    """Holds the settings in their written form: the file and the environment."""

    def __init__(self, path: Path | None, text: str, document: Mapping[str, Any]) -> None:
        # None means the packaged file, which no operator has written.
        self._path = path
        self._document = document
        self._lines = {} if path is None else _lines(text)
        self._environment = environment_settings()

    def origin(self, at: Place) -> tuple[str, str]:
        """Returns whether the environment, the file or neither sets exactly this setting, and the
        variable or line."""
        if at in set(_places(self._environment)):
            return "environment", _variable(at)
        # A variable replaces the file's whole list.
        if at in self._lines and not isinstance(self._environment.get(str(at[0])), list):
            return "file", f"{self._path}, line {self._lines[at]}"
        return "default", ""

    def located(self, error: SettingsError) -> str:
        """Returns the error's message with the place of its setting."""
        return self.explain(error.at, error.message) if error.at else str(error)

    def explain(self, at: Place, words: str, value: str = "") -> str:
        """Names the setting with its value, if given, and its line or variable."""
        document = self._environment if at[0] in self._environment else self._document
        origin = self._origin(_by_position(at, document))
        return f"{origin}{_shown_name(_by_own_name(at, document))}{value}: {words}"

    def _origin(self, at: Place) -> str:
        """Returns "" if neither the file nor a variable sets any part of this setting."""
        in_environment = _longest_known_prefix(at, set(_places(self._environment)))
        in_file = _longest_known_prefix(at, self._lines)
        # A variable replaces a whole list, but only single settings of a section.
        is_list = isinstance(self._environment.get(str(at[0])), list)
        if is_list or len(in_environment) >= len(in_file):
            variable = _variable(at)
            if variable:
                return f"{variable}: "
        return f"{self._path}, line {self._lines[in_file]}: " if in_file else ""


def _shown_name(at: Place) -> str:
    section, *rest = at
    if section not in _OWN_NAMES or not rest:
        return ".".join(map(str, at))
    entry, *setting = rest
    own = f"number {entry + 1}" if isinstance(entry, int) else repr(entry[:_SHOWN_LENGTH_MAX])
    name = f"{section} {own}"
    return f"{name}: {'.'.join(map(str, setting))}" if setting else name


def _by_own_name(at: Place, document: Mapping[str, Any]) -> Place:
    """Replaces the position by the name of a backend or model, if it has one."""
    names = _own_names(at, document)
    if len(at) > 1 and isinstance(at[1], int) and at[1] < len(names) and names[at[1]]:
        return (at[0], names[at[1]], *at[2:])
    return at


def _by_position(at: Place, document: Mapping[str, Any]) -> Place:
    names = _own_names(at, document)
    if len(at) > 1 and at[1] in names:
        return (at[0], names.index(str(at[1])), *at[2:])
    return at


def _own_names(at: Place, document: Mapping[str, Any]) -> list[str]:
    """Returns the names of all entries in the list, with "" for an entry without a name."""
    key, entries = _OWN_NAMES.get(str(at[0])), document.get(str(at[0]))
    if key is None or not isinstance(entries, list):
        return []
    found = [entry.get(key) if isinstance(entry, dict) else None for entry in entries]
    return [name if isinstance(name, str) else "" for name in found]


def _variable(at: Place) -> str:
    """Returns the variable that sets this place or a part that contains it."""
    variables = {name.upper(): name for name in os.environ}
    for length in range(len(at), 0, -1):
        name = f"{ENV_PREFIX}{'__'.join(map(str, at[:length]))}".upper()
        if name in variables:
            return variables[name]
    return ""


def _longest_known_prefix(at: Place, known: Collection[Place]) -> Place:
    lengths = range(len(at), 0, -1)
    return next((at[:length] for length in lengths if at[:length] in known), ())


def _places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yields every place within a TOML value."""
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else ()
    for key, entry in enumerate(value) if isinstance(value, list) else inner:
        yield from _places(entry, (*at, key))


def _lines(text: str) -> dict[Place, int]:
    """Maps each setting of a valid file to the line in which it begins."""
    lines: dict[Place, int] = {}
    table: Place = ()
    entries: dict[Place, int] = {}
    for begin, statement in _statements(text):
        read = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _table(read, entries)
            found = [table[:length] for length in range(1, len(table) + 1)]
        else:
            found = [(*table, *place) for place in _places(read)]
        for place in found:
            lines.setdefault(place, begin)
    return lines


def unfinished_line(text: str) -> int:
    """Returns the line of the first statement that cannot be parsed."""
    *_, (begin, _) = _statements(text)
    return begin


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yields every TOML statement with the line in which it begins. The TOML library does not
    report positions, but it can parse a statement as soon as it is complete. A rest that cannot be
    parsed comes last."""
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


def _table(header: Mapping[str, Any], entries: dict[Place, int]) -> Place:
    """Returns the place of a table by its header. `entries` has the last position in each list of
    tables."""
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
