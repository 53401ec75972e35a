"""Checks whether a JSON value conforms to the annotation of an SDK's request type.

Pydantic checks `Iterable` fields only while they are read, and accepts properties that a type does
not list. This check is stricter: it checks every value and rejects unknown properties.
"""

import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Union

import typing_extensions

_SCALARS: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (int, float),
    bool: (bool,),
    type(None): (type(None),),
    object: (object,),
}


def fits(value: Any, annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Annotated, typing.Required, typing_extensions.Required):
        return fits(value, arguments[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, choice) for choice in arguments)
    if origin is typing.Literal:
        return value in arguments
    if typing_extensions.is_typeddict(annotation):
        return _fits_typed_dict(value, annotation)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, dict)
    if origin is not None and issubclass(origin, Iterable):
        return isinstance(value, list) and all(fits(item, arguments[0]) for item in value)
    if annotation is Any:
        return True
    return annotation in _SCALARS and isinstance(value, _SCALARS[annotation])


def _fits_typed_dict(value: Any, annotation: Any) -> bool:
    hints = typing.get_type_hints(annotation)
    return (
        isinstance(value, dict)
        and annotation.__required_keys__ <= set(value) <= set(hints)
        and all(fits(item, hints[name]) for name, item in value.items())
    )
