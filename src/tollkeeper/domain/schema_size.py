"""Measures the work that a JSON schema causes in a model server that constrains its output to the
schema.

The server tracks all possible continuations of the answer at the same time. Its work therefore
grows with the number of choices that the schema allows, not only with the length of the schema's
text.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

# The schema keywords whose value is a map of subschemas, a list of subschemas, or one subschema.
_MAPS = ("properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLES = ("items", "additionalProperties", "additionalItems", "contains", "not")
# The schema keywords whose value may be a list of choices.
_BRANCHES = ("enum", "anyOf", "oneOf", "type")
# References can multiply the number of choices. Counting stops at this number, which is far above
# every limit, so that the integers stay small.
_COUNT_MAX = 10**9
# A schema with deeper nesting than this, including references, counts as too large.
_DEPTH_MAX = 100
# A list index in a reference must have fewer digits than this.
_INDEX_LENGTH_MAX = 9
# By measurement, a pattern of 50 optional letters causes as much work as an enum of 400 values,
# which is about the square of 50 divided by this number.
_SQUARED_STEPS_PER_CHOICE = 6
# Splits a regular expression into tokens in linear time. No byte is scanned twice, because the
# quantifier is possessive and a character class without a closing bracket is accepted.
_PATTERN_TOKEN = re.compile(
    r"\\.|\[(?:\\.|[^\]\\])*+\]?|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class SchemaBounds:
    """Contains a backend's limits for all schemas of one call together."""

    choices_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class SchemaSize:
    # The number of enum values, branches of unions, optional properties and choices inside
    # patterns.
    choices: int = 0
    bytes: int = 0

    def __add__(self, other: "SchemaSize") -> "SchemaSize":
        choices = min(self.choices + other.choices, _COUNT_MAX)
        return SchemaSize(choices, self.bytes + other.bytes)

    def exceeded_limit(self, bounds: SchemaBounds) -> str | None:
        """Describes the exceeded limit for an error message; returns None if no limit is
        exceeded."""
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
    """Measures a schema and never fails. Invalid elements do not count, because the backend rejects
    an invalid schema. If the schema exceeds the byte limit, its choices are not counted."""
    size_of_text = SchemaSize(bytes=len(msgspec.json.encode(schema)))
    if size_of_text.exceeded_limit(bounds):
        return size_of_text
    return size_of_text + _SchemaWalk(schema).size(schema, 0)


class _SchemaWalk:
    """Measures a schema. Visits each definition only once, but counts its choices for each `$ref` to
    it. A `$ref` inside its own definition counts as nothing, so that a cycle of references ends."""

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
    """Returns the number of choices in this schema itself, without its subschemas."""
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
    """Returns the value at a JSON pointer of the form `#/$defs/name`; None if there is no value."""
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
    """Counts the alternatives of a regular expression, and its steps (repeated or optional
    elements). The steps inside a repeated group count once per repetition. The number of steps is
    squared, because each step can be combined with every other step, and then divided by
    `_SQUARED_STEPS_PER_CHOICE`."""
    # The number of steps in each open group. The first number is for the whole pattern.
    steps = [0]
    alternatives = 0
    # The steps inside the group that the previous symbol closed.
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
