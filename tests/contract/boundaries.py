"""Generates values at the bounds of a JSON schema, and just beyond them.

This module does not decide which values are valid. The tests compare the OpenAPI document with the server.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

# One value of every JSON type. 1.5 stands for numbers that are not integers.
_EVERY_TYPE: tuple[Any, ...] = (None, True, False, 0, 7, 1.5, "", "text", [], [7], {}, {"x": 1})
# Characters that HTTP allows in the value of a header, from the ends of their ranges.
_HEADER_CHARACTERS = ("!", "~", ",", "a", "\x80", "\xa0", "\xff")
_HEADER_INNER_CHARACTERS = (*_HEADER_CHARACTERS, " ", "\t")
_DEPTH_MAX = 3  # Properties and items inside of a value with a longer path get no values.


@dataclass(frozen=True)
class Candidate:
    """A value for one property of a body."""

    path: tuple[str | int, ...]
    value: Any

    @property
    def param(self) -> str:
        """Returns the path in the notation of error messages."""
        parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path]
        return "".join(parts).lstrip(".")

    def within(self, body: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of the body with the value at its path. Creates missing objects and arrays."""
        changed = copy.deepcopy(body)
        at: Any = changed
        for part, following in zip(self.path, self.path[1:], strict=False):
            empty: Any = [] if isinstance(following, int) else {}
            if isinstance(part, int):
                if part == len(at):
                    at.append(empty)
            elif not isinstance(at.get(part), type(empty)):
                at[part] = empty
            at = at[part]
        if isinstance(self.path[-1], int) and self.path[-1] == len(at):
            at.append(self.value)
        else:
            at[self.path[-1]] = self.value
        return changed


def body_candidates(schema: Schema, schemas: dict[str, Schema]) -> Iterator[Candidate]:
    """Yields values for every property of an object, and of the objects inside of it."""
    yield from _of_properties(_resolved(schema, schemas), schemas, ())


def _of_properties(
    schema: Schema, schemas: dict[str, Schema], path: tuple[str | int, ...]
) -> Iterator[Candidate]:
    for name, inner in schema.get("properties", {}).items():
        yield from _of_value(inner, schemas, (*path, name))
    if schema.get("additionalProperties") is False:
        yield Candidate((*path, "surprise"), 1)


def _of_value(
    schema: Schema, schemas: dict[str, Schema], path: tuple[str | int, ...]
) -> Iterator[Candidate]:
    for value in _EVERY_TYPE:
        yield Candidate(path, value)
    for choice in _choices(schema, schemas):
        for value in boundary_values(choice):
            yield Candidate(path, value)
        if len(path) <= _DEPTH_MAX:
            yield from _of_properties(choice, schemas, path)
            if isinstance(choice.get("items"), dict):
                yield from _of_value(choice["items"], schemas, (*path, 0))


def boundary_values(schema: Schema) -> Iterator[Any]:
    """Yields every value of an enum, and values at and next to each bound."""
    yield from schema.get("enum", ())
    if "const" in schema:
        yield schema["const"]
    for bound, beyond in (("minimum", -1), ("maximum", 1)):
        if bound in schema:
            yield from (schema[bound], schema[bound] + beyond)
    for bound in ("minLength", "maxLength"):
        for length in _around(schema.get(bound)):
            yield "a" * length
            # The rule of a policy must end with a question mark.
            yield "a" * (length - 1) + "?"
    for bound in ("minItems", "maxItems"):
        for length in _around(schema.get(bound)):
            yield from (["a"] * length, [{}] * length)
    for bound in ("maxProperties",):
        for length in _around(schema.get(bound)):
            yield {f"{number}": "a" for number in range(length)}


def header_values(schema: Schema) -> Iterator[str]:
    """Yields texts with lengths at each bound, and each character alone, at both ends and in the middle."""
    for bound in ("minLength", "maxLength"):
        for length in _around(schema.get(bound)):
            yield "a" * length
    yield from schema.get("examples", ())
    for character in _HEADER_CHARACTERS:
        yield from (character, f"{character}bcdefghi", f"abcdefgh{character}")
    for example in ("abcdefghi", *schema.get("examples", ())):
        for character in _HEADER_INNER_CHARACTERS:
            yield f"{example[:4]}{character}{example[4:]}"
            yield f"{example}{character}{example}"


def _around(bound: int | None) -> Iterator[int]:
    if bound is not None:
        yield from (length for length in (bound - 1, bound, bound + 1) if length >= 0)


def _choices(schema: Schema, schemas: dict[str, Schema]) -> Iterator[Schema]:
    resolved = _resolved(schema, schemas)
    inner = resolved.get("anyOf", resolved.get("oneOf"))
    if inner is None:
        yield resolved
    else:
        for choice in inner:
            yield from _choices(choice, schemas)


def _resolved(schema: Schema, schemas: dict[str, Schema]) -> Schema:
    reference = schema.get("$ref")
    return schema if reference is None else schemas[reference.rsplit("/", 1)[1]]
