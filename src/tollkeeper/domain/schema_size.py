"""How much a JSON schema asks of an engine that constrains its output while it writes.

Such an engine keeps every way in which an answer may go on side by side, so what counts is not the
text of a schema but how many ways it opens.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

_MAPS = ("properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLES = ("items", "additionalProperties", "additionalItems", "contains", "not")
_BRANCHES = ("enum", "anyOf", "oneOf", "type")
# References multiply: numbers beyond any bound need not be exact.
_COUNT_MAX = 10**9
# Nested so deeply, through references, it is refused whatever else it is.
_DEPTH_MAX = 100
_INDEX_LENGTH_MAX = 9
# Measured: fifty optional letters cost an engine as much as four hundred values of an enum.
_SQUARED_STEPS_PER_CHOICE = 6
# Possessive, and content with a class that never ends: no pattern makes it look at a byte twice.
_PATTERN_TOKEN = re.compile(
    r"\\.|\[(?:\\.|[^\]\\])*+\]?|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class SchemaBounds:
    """What a backend takes in all schemas of one call together."""

    choices_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class SchemaSize:
    # Values of enums, branches of unions, properties that may be left out, and what patterns add.
    choices: int = 0
    bytes: int = 0

    def __add__(self, other: "SchemaSize") -> "SchemaSize":
        choices = min(self.choices + other.choices, _COUNT_MAX)
        return SchemaSize(choices, self.bytes + other.bytes)

    def excess(self, bounds: SchemaBounds) -> str | None:
        """What is too much, in words; None where nothing is."""
        if self.bytes > bounds.bytes_max:
            return f"{bounds.bytes_max} bytes of schema"
        if self.choices > bounds.choices_max:
            return (
                f"{bounds.choices_max} choices in its schemas: enum values, branches, optional "
                "properties and repeated steps of patterns"
            )
        return None


_TOO_DEEP = SchemaSize(choices=_COUNT_MAX)


def measure_schema(schema: Mapping[str, Any], bounds: SchemaBounds) -> SchemaSize:
    """Never fails: what is no schema opens no ways, and the backend says what it thinks of it.
    What is too long already is not walked through."""
    text = SchemaSize(bytes=len(msgspec.json.encode(schema)))
    return text if text.excess(bounds) else text + _Measuring(schema).size(schema, 0)


class _Measuring:
    """One walk over a schema. What is referred to counts wherever it is referred to, but once in a
    circle."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._referred: dict[str, SchemaSize] = {}

    def size(self, schema: object, depth: int) -> SchemaSize:
        if not isinstance(schema, Mapping):
            return SchemaSize()
        if depth > _DEPTH_MAX:
            return _TOO_DEEP
        found = _own_size(schema)
        for inner in _inner(schema):
            found += self.size(inner, depth + 1)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found += self._size_referred(reference, depth + 1)
        return found

    def _size_referred(self, reference: str, depth: int) -> SchemaSize:
        known = self._referred.get(reference)
        if known is None:
            self._referred[reference] = SchemaSize()
            known = self.size(_resolved(self._root, reference), depth)
            self._referred[reference] = known
        return known


def _own_size(schema: Mapping[str, Any]) -> SchemaSize:
    choices = sum(len(schema[name]) for name in _BRANCHES if isinstance(schema.get(name), list))
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        required = schema.get("required")
        names = required if isinstance(required, list) else ()
        needed = {name for name in names if isinstance(name, str)}
        choices += sum(name not in needed for name in properties)
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        choices += _pattern_choices(pattern)
    return SchemaSize(choices=min(choices, _COUNT_MAX))


def _inner(schema: Mapping[str, Any]) -> Iterator[object]:
    for name in _MAPS:
        if isinstance(schema.get(name), Mapping):
            yield from schema[name].values()
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            yield from schema[name]
    for name in _SINGLES:
        yield schema.get(name)


def _resolved(root: Mapping[str, Any], reference: str) -> object:
    """What a reference inside the schema means; other ones mean nothing here."""
    found: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        if isinstance(found, Mapping):
            found = found.get(step.replace("~1", "/").replace("~0", "~"))
        elif isinstance(found, list) and step.isdecimal() and len(step) < _INDEX_LENGTH_MAX:
            found = found[int(step)] if int(step) < len(found) else None
        else:
            return None
    return found


def _pattern_choices(pattern: str) -> int:
    """Alternatives, and steps that may be repeated or left out, of a group as often as it is
    repeated. Each of those is a way by itself and in company of all others: they count squared."""
    steps, alternatives, closed = [0], 0, 0
    for found in _PATTERN_TOKEN.finditer(pattern):
        piece, inside = found[0], 0
        if piece == "(":
            steps.append(0)
        elif piece == ")" and len(steps) > 1:
            inside = steps.pop()
            steps[-1] += inside
        elif piece == "|":
            alternatives += 1
        elif piece in ("?", "*", "+"):
            steps[-1] += 1
        elif found["least"] is not None:
            times = int((found["most"] or found["least"])[:9])
            steps[-1] += 1 + closed * max(0, times - 1)
        steps[-1] = min(steps[-1], _COUNT_MAX)
        closed = inside
    return alternatives + sum(steps) ** 2 // _SQUARED_STEPS_PER_CHOICE
