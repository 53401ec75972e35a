"""Defines the base class of all sections of the settings, and the types that several sections use."""

import re
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

# A listening address. It must not be empty, because "" would mean every address of the machine.
Host = Annotated[str, Field(min_length=1, max_length=255)]
Name = Annotated[str, Field(min_length=1, max_length=120)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
# The path of a file that contains a secret.
SecretFile = Annotated[str, Field(repr=False)]


def _require_variable_name(name: str) -> str:
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", name):
        raise ValueError(
            "must be the name of an environment variable, without $, and not the secret itself"
        )
    return name


# The name of the environment variable that contains a secret. Messages do not show the value of this
# setting, because the operator may have written the secret itself by mistake.
SecretVariable = Annotated[str, AfterValidator(_require_variable_name), Field(repr=False)]


def _require_source(source: str) -> str:
    if not re.fullmatch(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)?", source):
        raise ValueError('must be "env:NAME" or "file:PATH", and not the secret itself')
    return source


# The variable ("env:NAME") or file ("file:PATH") that contains a secret, or "". `Source` is the type of
# a list's elements. Messages do not show the value of a setting with the type `SecretSource`.
Source = Annotated[str, AfterValidator(_require_source)]
SecretSource = Annotated[Source, Field(repr=False)]


def conflicting_setting(words: str, *at: str | int) -> PydanticCustomError:
    """Creates the error that the setting `at` contradicts other settings. `words` is the message."""
    details = {"words": words, "at": at, "name": ".".join(map(str, at))}
    return PydanticCustomError("conflicting_setting", "{name}: {words}", details)


class Section(BaseModel):
    """Defines the behaviour of all sections. No message shows the value of a field with `repr=False`,
    because the value may be a secret."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _reject_boolean(cls, value: Any, info: ValidationInfo) -> Any:
        """Rejects a boolean for a setting that is a number, because pydantic would read `true` as 1."""
        assert info.field_name is not None
        annotation = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and {int, float} & {annotation, *get_args(annotation)}:
            raise ValueError("must be a number")
        return value


_Built = TypeVar("_Built")


def built_from(section: Section, target: type[_Built], **computed: Any) -> _Built:
    """Builds the dataclass `target`: a field with the name of a setting gets the setting's value, and
    `computed` has the other fields and those that aren't simply the setting. So a new setting needs
    its line in the section and its field in the dataclass."""
    settings = type(section).model_fields
    names = {field.name for field in fields(target) if field.init} & settings.keys()  # type: ignore[arg-type]
    return target(**{name: getattr(section, name) for name in names - computed.keys()}, **computed)


def shown_variable(name: str) -> str:
    """Formats the name of an environment variable for a message. A name with lower-case letters is not
    shown, because it may be a secret that was written instead of the name."""
    return f"${name}" if name == name.upper() else "the variable that this setting names"
