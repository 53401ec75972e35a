"""Says in our own words what is wrong with a setting."""

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic_core import ErrorDetails

# What the settings library calls an error, and what we say; the braces name its details.
_SENTENCES = {
    "missing": "is required",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be an integer",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "is too large",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a text",
    "string_pattern_mismatch": "must have the form {pattern}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a section with settings of its own",
    "model_attributes_type": "must be a section with settings of its own",
    "path_type": "must be a path",
    "path_parsing": "must be a path",
}
_OWN_PREFIX = "Value error, "


def explanation(error: ErrorDetails, known_names: Sequence[str]) -> str:
    """`known_names` are the settings that exist where the error is."""
    kind = error["type"]
    if kind == "extra_forbidden":
        return _unknown(str(error["loc"][-1]), known_names)
    if kind == "value_error":
        return error["msg"].removeprefix(_OWN_PREFIX)
    sentence = _SENTENCES.get(kind)
    if sentence is None:
        # The library's own sentence is better than none; it never has the value.
        return error["msg"][:1].lower() + error["msg"][1:]
    return sentence.format_map(
        {name: _plain(value) for name, value in error.get("ctx", {}).items()}
    )


def unknown_section(name: str, known_names: Sequence[str]) -> str:
    return f"there is no section {name}{_nearest(name, known_names)}"


def _unknown(name: str, known_names: Sequence[str]) -> str:
    return f"is not a setting{_nearest(name, known_names)}"


def _nearest(name: str, known_names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known_names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _plain(value: Any) -> Any:
    """A bound without a needless fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
