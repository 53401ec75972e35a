"""Locates a setting for messages: finds its readable name, and the line in the settings file or the
environment variable that sets it."""

import os
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tollkeeper.settings.schema import ENV_PREFIX, environment_settings

# The path to a setting, for example ("server", "port"). An entry of a list is identified by its position.
# An entry of `backends` or `models` can also be identified by its name or id: ("models", "example/chat",
# "pricing").
Place = tuple[str | int, ...]
# Maps each list whose entries have names to the setting that contains the name.
_NAME_SETTINGS = {"backends": "name", "models": "id"}
_SHOWN_LENGTH_MAX = 80


class SettingsError(Exception):
    """Reports an invalid setting. The message says which values are allowed. It shows the invalid value
    unless the value may be secret. If the message is about a single setting, `at` is the place
    of this setting."""

    def __init__(self, message: str, at: Place = ()) -> None:
        super().__init__(f"{_shown_name(at)}: {message}" if at else message)
        self.message = message
        self.at = at


class SettingsSource:
    """Holds the settings as the operator has written them: in the file and in the environment."""

    def __init__(self, path: Path | None, text: str, document: Mapping[str, Any]) -> None:
        # None means the packaged file. Messages do not name its lines, because the operator has not
        # written them.
        self._path = path
        self._document = document
        self._lines = {} if path is None else _lines(text)
        self._environment = environment_settings()

    def origin(self, at: Place) -> tuple[str, str]:
        """Returns the source that sets exactly this setting: "environment" with the variable, "file"
        with the line, or "default" with ""."""
        if at in set(_places(self._environment)):
            return "environment", _variable(at)
        # If a variable sets a list, the whole list in the file is ignored.
        if at in self._lines and not isinstance(self._environment.get(str(at[0])), list):
            return "file", f"{self._path}, line {self._lines[at]}"
        return "default", ""

    def located(self, error: SettingsError) -> str:
        """Returns the error's message with the name of its setting and the line or variable."""
        return self.explain(error.at, error.message) if error.at else str(error)

    def explain(self, at: Place, words: str, value: str = "") -> str:
        """Builds a message from the line or variable of the setting, its name, its value (such as
        " = 5") and `words`."""
        document = self._environment if at[0] in self._environment else self._document
        prefix = self._message_prefix(_by_position(at, document))
        return f"{prefix}{_shown_name(_by_name(at, document))}{value}: {words}"

    def _message_prefix(self, at: Place) -> str:
        """Returns the beginning of a message: the variable or line that sets this setting or the table or
        list around it. Returns "" if there is no such variable or line."""
        in_environment = _longest_known_prefix(at, set(_places(self._environment)))
        in_file = _longest_known_prefix(at, self._lines)
        # A variable for a list replaces the whole list in the file. In other sections, a variable
        # replaces single settings, so the source that matches more parts of `at` applies.
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
    """Replaces the position of a backend or model by its name or id, if it has one."""
    names = _entry_names(at, document)
    if len(at) > 1 and isinstance(at[1], int) and at[1] < len(names) and names[at[1]]:
        return (at[0], names[at[1]], *at[2:])
    return at


def _by_position(at: Place, document: Mapping[str, Any]) -> Place:
    """Replaces the name or id of a backend or model by its position."""
    names = _entry_names(at, document)
    if len(at) > 1 and at[1] in names:
        return (at[0], names.index(str(at[1])), *at[2:])
    return at


def _entry_names(at: Place, document: Mapping[str, Any]) -> list[str]:
    """Returns the names of all backends, or the ids of all models, if the place is in one of these
    lists. An entry without a name gets ""."""
    key, entries = _NAME_SETTINGS.get(str(at[0])), document.get(str(at[0]))
    if key is None or not isinstance(entries, list):
        return []
    names = [entry.get(key) if isinstance(entry, dict) else None for entry in entries]
    return [name if isinstance(name, str) else "" for name in names]


def _variable(at: Place) -> str:
    """Returns the environment variable that sets this place, the table or list around it, or an
    entry inside of it. Returns "" if there is no such variable."""
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
    """Yields the place `at` of a parsed TOML value, and the places of all values within it."""
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else ()
    for key, entry in enumerate(value) if isinstance(value, list) else inner:
        yield from _places(entry, (*at, key))


def _lines(text: str) -> dict[Place, int]:
    """Maps each setting of a valid file to the line in which it begins."""
    lines: dict[Place, int] = {}
    table: Place = ()
    # For each list of tables, the position of its last entry so far.
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
    """Returns the line of the first statement that cannot be parsed."""
    *_, (begin, _) = _statements(text)
    return begin


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yields every TOML statement with the line in which it begins. The TOML library does not report
    positions, so lines are added to a statement until the library can parse it. If the end of the file
    cannot be parsed, it is yielded as the last statement."""
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
    """Returns the place of the table with this parsed header. `entries` contains the last position
    in each list of tables. A header like [[models]] increments this position."""
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
