"""Writes docs/api.md from openapi.json. `make openapi` runs this tool. `python -m tools.api_reference` runs
only this tool."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "openapi.json"
PAGE = ROOT / "docs" / "api.md"
_SCHEMA = "#/components/schemas/"
# The maximum number of an enum's values that the page shows.
_ENUM_VALUES_MAX = 8
_HEAD = """# API reference

`make openapi` generates this page from [openapi.json](../openapi.json). `customerKey` and `customerHeaderKey`
are project keys (`Authorization: Bearer …`, or `x-api-key`); `adminKey` is an admin key. All errors have
the same form, with a [`type` and a `code`](open-questions.md#types-and-codes-of-errors). `param` names
the invalid field.
"""


def reference(document: dict[str, Any]) -> str:
    """Returns the text of the page."""
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    lines = [_HEAD, "| request | what it does |", "|---|---|"]
    lines += [
        f"| [`{method} {path}`](#{operation['operationId']}) | {operation['summary']} |"
        for method, path, operation in operations
    ]
    used: list[str] = []
    for method, path, operation in operations:
        lines += ["", *_operation(method, path, operation, used)]
    lines += ["", "## Objects", "", "Fields that are written in **bold** are required."]
    schemas = document["components"]["schemas"]
    # The loop appends to `used` whenever an object refers to another object.
    for name in used:
        lines += ["", *_object(name, schemas[name], used)]
    return "\n".join(lines) + "\n"


def _operation(method: str, path: str, operation: dict[str, Any], used: list[str]) -> Iterator[str]:
    yield f"## {operation['operationId']}"
    yield ""
    keys = " or ".join(f"`{name}`" for scheme in operation["security"] for name in scheme)
    yield f"`{method} {path}`: {operation['summary']}. {operation['description']} Key: {keys}."
    if operation.get("parameters"):
        yield from ("", "| parameter | in | type | |", "|---|---|---|---|")
        for parameter in operation["parameters"]:
            name = (
                f"**`{parameter['name']}`**" if parameter["required"] else f"`{parameter['name']}`"
            )
            kind = _type(parameter["schema"], used)
            yield f"| {name} | {parameter['in']} | {kind} | {parameter.get('description', '')} |"
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        yield from ("", f"Body: {_type(schema, used)}.")
    answers = operation["responses"]["200"]["content"]
    shown = [
        f"{_type(content['schema'], used)} (`{kind}`)"
        for kind, content in answers.items()
        if kind == "application/json" or len(answers) > 1
    ]
    yield from ("", f"Answer: {' or '.join(shown)}.")
    codes = ", ".join(code for code in operation["responses"] if code != "200")
    yield from ("", f"Other statuses: {codes}.")


def _object(name: str, schema: dict[str, Any], used: list[str]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    if "properties" not in schema:
        yield f"{_type({**schema, 'title': None}, used)}."
        return
    yield from ("| field | type | |", "|---|---|---|")
    required = set(schema.get("required", ()))
    for field, inner in schema["properties"].items():
        shown = f"**`{field}`**" if field in required else f"`{field}`"
        yield f"| {shown} | {_type(inner, used)} | {inner.get('description', '')} |"


def _type(schema: dict[str, Any], used: list[str]) -> str:
    """Describes a type in a few words. Links to objects that have a name, and adds their names to `used`."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_SCHEMA)
        if name not in used:
            used.append(name)
        return f"[{name}](#{name.lower()})"
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return " or ".join(dict.fromkeys(_type(inner, used) for inner in schema[keyword]))
    if "enum" in schema:
        values = [f"`{json.dumps(value)}`" for value in schema["enum"]]
        more = " …" if len(values) > _ENUM_VALUES_MAX else ""
        return " ".join(values[:_ENUM_VALUES_MAX]) + more
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(_type({**schema, "type": one}, used) for one in kind)
    if kind == "array":
        return f"array of {_type(schema.get('items', {}), used)}"
    bounds = [
        f"{word} {schema[name]}"
        for name, word in (
            ("minimum", "from"),
            ("maximum", "to"),
            ("minLength", "at least"),
            ("maxLength", "at most"),
        )
        if name in schema
    ]
    unit = " characters" if kind == "string" else ""
    return f"{kind} ({', '.join(bounds)}{unit})" if bounds else kind


def main() -> None:
    PAGE.write_text(reference(json.loads(SOURCE.read_text())))


if __name__ == "__main__":
    main()
