"""Tests the size of JSON schemas: how many choices an engine has to keep in memory for a schema."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.core.schema_size import SchemaBounds, SchemaSize
from tollkeeper.core.schema_size import measure_schema as measure_within

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["enum", "anyOf", "type", "properties", "required", "items", "pattern", "$ref", "x"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


def measure_schema(schema: dict[str, Any]) -> SchemaSize:
    return measure_within(schema, SchemaBounds(choices_max=0, bytes_max=10**7))


def _values(count: int) -> dict[str, Any]:
    return {"enum": [f"value {number}" for number in range(count)]}


@each(
    ("schema", "choices"),
    [
        ({}, 0),
        ({"type": "string"}, 0),
        (_values(7), 7),
        ({"type": ["string", "null"]}, 2),
        ({"anyOf": [{}, {}, _values(3)]}, 6),
        ({"oneOf": [{}, {}]}, 2),
        ({"allOf": [_values(2), _values(3)]}, 5),
        ({"items": _values(3)}, 3),
        ({"items": [_values(3), _values(1)]}, 4),
        ({"prefixItems": [_values(2)], "additionalProperties": _values(2)}, 4),
        # Property names are not read as keywords.
        ({"properties": {"enum": _values(2), "anyOf": {}}, "required": ["enum", "anyOf"]}, 2),
        ({"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b", 5]}, 2),
        # A definition without a reference to it does not count.
        ({"$defs": {"unused": _values(9)}}, 0),
        ({"$defs": {"a": _values(9)}, "items": {"$ref": "#/$defs/a"}}, 9),
        ({"$defs": {"a": _values(9)}, "anyOf": [{"$ref": "#/$defs/a"}] * 5}, 50),
        ({"$defs": {"a/~b": _values(4)}, "$ref": "#/$defs/a~1~0b"}, 4),
        ({"properties": {"next": {"$ref": "#"}}}, 2),
        ({"$ref": "#/nowhere/at/all"}, 0),
        ({"prefixItems": [_values(3), {"$ref": "#/prefixItems/0"}]}, 6),
        ({"prefixItems": [{"$ref": "#/prefixItems/7"}, {"$ref": "#/prefixItems/x"}]}, 0),
        ({"$ref": "https://elsewhere.example/schema"}, 0),
    ],
)
def test_choices(schema: dict[str, Any], choices: int) -> None:
    assert measure_schema(schema).choices == choices


@each(
    ("pattern", "least", "most"),
    [
        ("^[a-z]+$", 0, 1),
        # Usual patterns have few choices.
        ("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$", 1, 10),
        (r"^[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}$", 1, 10),
        (r"^\d{1,3}(\.\d{1,3}){3}$", 1, 10),
        ("^(one|two|three)$", 2, 2),
        # These patterns block an engine for seconds, although they are short.
        ("a?" * 50, 400, 500),
        ("^(a?){50}$", 400, 500),
        ("^((a?b?){5}){5}$", 400, 700),
        ("^(a?){99999999999999999999}$", 10**9, 10**9),
        # Escaped characters, characters of a class and malformed patterns do not count.
        (r"\?\?\(\?[?*+()|{5}]", 0, 0),
        ("a{x}b{,}", 0, 0),
        ("((((", 0, 0),
        ("))))", 0, 0),
        # Long malformed patterns must not take quadratic time.
        ("[" * 1_000_000, 0, 0),
        ("(" * 1_000_000, 0, 0),
        ("\\" * 1_000_001, 0, 0),
    ],
)
def test_patterns(pattern: str, least: int, most: int) -> None:
    assert least <= measure_schema({"pattern": pattern}).choices <= most


def test_references_multiply_without_end_of_their_own() -> None:
    doubling: dict[str, Any] = {
        f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(60)
    }
    assert measure_schema({"$defs": doubling, "$ref": "#/$defs/d0"}).choices == 10**9
    chain = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(5000)}
    assert measure_schema({"$defs": chain, "$ref": "#/$defs/d0"}).choices == 10**9


def test_what_is_too_much_is_named() -> None:
    bounds = SchemaBounds(choices_max=10, bytes_max=100)
    assert SchemaSize(choices=10, bytes=100).exceeded_limit(bounds) is None
    assert "10 choices" in (SchemaSize(choices=11).exceeded_limit(bounds) or "")
    assert "100 bytes" in (SchemaSize(bytes=101).exceeded_limit(bounds) or "")
    assert measure_schema({"description": "ü" * 10}).bytes == 38
    assert measure_within({"enum": ["x" * 200] * 50}, bounds).choices == 0


@given(st.dictionaries(st.sampled_from(["enum", "anyOf", "properties", "items"]), _JSON))
def test_nonsense_is_measured_too(schema: dict[str, Any]) -> None:
    assert measure_schema(schema).choices >= 0
