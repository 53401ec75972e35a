"""Defines the base class of all settings sections, and the types that several of them use."""

import re
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

# A listening address. An empty one would mean every address of the machine.
Host = Annotated[str, Field(min_length=1, max_length=255)]
Name = Annotated[str, Field(min_length=1, max_length=120)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
SecretFile = Annotated[str, Field(repr=False)]


def _is_variable(name: str) -> str:
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", name):
        raise ValueError(
            "must be the name of an environment variable, without $, and not the secret itself"
        )
    return name


# The environment variable that contains a secret. An invalid name is not shown: it may be the
# secret itself.
SecretVariable = Annotated[str, AfterValidator(_is_variable), Field(repr=False)]


def _is_source(source: str) -> str:
    if not re.fullmatch(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)?", source):
        raise ValueError('must be "env:NAME" or "file:PATH", and not the secret itself')
    return source


Source = Annotated[str, AfterValidator(_is_source)]
# The variable or file that contains a secret; may be empty.
SecretSource = Annotated[Source, Field(repr=False)]


def misfit(words: str, *at: str | int) -> PydanticCustomError:
    """Creates an error about the setting `at`, which contradicts another one."""
    details = {"words": words, "at": at, "name": ".".join(map(str, at))}
    return PydanticCustomError("misfit", "{name}: {words}", details)


class Section(BaseModel):
    """Base of all sections. A field with `repr=False` may be a secret: no message shows its
    value."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_not_boolean(cls, value: Any, info: ValidationInfo) -> Any:
        """Rejects booleans for numbers, because the settings library would read `true` as 1."""
        assert info.field_name is not None
        annotation = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and {int, float} & {annotation, *get_args(annotation)}:
            raise ValueError("must be a number")
        return value


def shown_variable(name: str) -> str:
    """Formats an environment variable for a message. Lower-case text may be a secret in place of a
    name, so it is not repeated."""
    return f"${name}" if name == name.upper() else "the variable that it names"
