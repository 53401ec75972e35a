"""How much work a JSON schema makes for a server that constrains its output to it.

The server tracks all possible continuations at once, so its work grows with the choices that the schema
allows, not only with its length.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

# Their value is a map of subschemas, a list, or one.
_MAPS = ("properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLES = ("items", "additionalProperties", "additionalItems", "contains", "not")
# Their value may be a list of choices.
_BRANCHES = ("enum", "anyOf", "oneOf", "type")
# References multiply choices. Counting stops far above every limit, so that integers stay small.
_COUNT_MAX = 10**9
# Deeper, including references, is too large.
_DEPTH_MAX = 100
# More digits aren't a list index.
_INDEX_LENGTH_MAX = 9
# Measured: 50 optional letters make as much work as an enum of 400 values, about the square of 50 divided by
# this.
_SQUARED_STEPS_PER_CHOICE = 6
# In linear time: the quantifier is possessive, and an unclosed character class is accepted, so no byte is
# scanned twice.
_PATTERN_TOKEN = re.compile(
    r"\\.|\[(?:\\.|[^\]\\])*+\]?|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class SchemaBounds:
    """For all schemas of one call together."""

    choices_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class SchemaSize:
    # Enum values, branches of unions, optional properties and choices in patterns.
    choices: int = 0
    bytes: int = 0

    def __add__(self, other: "SchemaSize") -> "SchemaSize":
        choices = min(self.choices + other.choices, _COUNT_MAX)
        return SchemaSize(choices, self.bytes + other.bytes)

    def exceeded_limit(self, bounds: SchemaBounds) -> str | None:
        """For an error; None if none is exceeded."""
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
    """Never fails: what's invalid doesn't count, because the backend rejects it, and choices don't count
    beyond the byte limit."""
    size_of_text = SchemaSize(bytes=len(msgspec.json.encode(schema)))
    if size_of_text.exceeded_limit(bounds):
        return size_of_text
    return size_of_text + _SchemaWalk(schema).size(schema, 0)


class _SchemaWalk:
    """Visits a definition once, but counts its choices for each `$ref`. A `$ref` inside its own definition is
    nothing, so cycles end."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._size_by_reference: dict[str, SchemaSize] = {}

    def size(self, schema: object, depth: int) -> SchemaSize:
        if not isinstance(schema, Mapping):
            return SchemaSize()
        if depth > _DEPTH_MAX:
            return _TOO_DEEP
        total = _own_size(schema)
        for subschema in _subschemas(schema):
            total += self.size(subschema, depth + 1)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            total += self._size_of_reference(reference, depth + 1)
        return total

    def _size_of_reference(self, reference: str, depth: int) -> SchemaSize:
        size = self._size_by_reference.get(reference)
        if size is None:
            self._size_by_reference[reference] = SchemaSize()
            size = self.size(_resolve(self._root, reference), depth)
            self._size_by_reference[reference] = size
        return size


def _own_size(schema: Mapping[str, Any]) -> SchemaSize:
    """Without its subschemas."""
    choices = sum(len(schema[name]) for name in _BRANCHES if isinstance(schema.get(name), list))
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        required = schema.get("required")
        names = required if isinstance(required, list) else ()
        required_names = {name for name in names if isinstance(name, str)}
        choices += sum(name not in required_names for name in properties)
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        choices += _pattern_choices(pattern)
    return SchemaSize(choices=min(choices, _COUNT_MAX))


def _subschemas(schema: Mapping[str, Any]) -> Iterator[object]:
    for name in _MAPS:
        if isinstance(schema.get(name), Mapping):
            yield from schema[name].values()
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            yield from schema[name]
    for name in _SINGLES:
        yield schema.get(name)


def _resolve(root: Mapping[str, Any], reference: str) -> object:
    """Of the form `#/$defs/name`; None if there's nothing."""
    value: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        if isinstance(value, Mapping):
            value = value.get(step.replace("~1", "/").replace("~0", "~"))
        elif isinstance(value, list) and step.isdecimal() and len(step) < _INDEX_LENGTH_MAX:
            value = value[int(step)] if int(step) < len(value) else None
        else:
            return None
    return value


def _pattern_choices(pattern: str) -> int:
    """Alternatives and steps (repeated or optional elements), once per repetition of a group. Every step
    combines with every other, so they're squared and divided by `_SQUARED_STEPS_PER_CHOICE`."""
    # Of each open group; the first is the whole pattern.
    steps = [0]
    alternatives = 0
    # The group that the previous symbol closed.
    steps_of_closed_group = 0
    for match in _PATTERN_TOKEN.finditer(pattern):
        symbol, steps_of_group = match[0], 0
        if symbol == "(":
            steps.append(0)
        elif symbol == ")" and len(steps) > 1:
            steps_of_group = steps.pop()
            steps[-1] += steps_of_group
        elif symbol == "|":
            alternatives += 1
        elif symbol in ("?", "*", "+"):
            steps[-1] += 1
        elif match["least"] is not None:
            times = int((match["most"] or match["least"])[:9])
            steps[-1] += 1 + steps_of_closed_group * max(0, times - 1)
        steps[-1] = min(steps[-1], _COUNT_MAX)
        steps_of_closed_group = steps_of_group
    return alternatives + sum(steps) ** 2 // _SQUARED_STEPS_PER_CHOICE
