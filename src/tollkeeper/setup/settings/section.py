"""The base of all sections, and types that several use."""

import re
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

# "" would mean every address of the machine.
Host = Annotated[str, Field(min_length=1, max_length=255)]
Name = Annotated[str, Field(min_length=1, max_length=120)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
SecretFile = Annotated[str, Field(repr=False)]


def _require_variable_name(name: str) -> str:
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", name):
        raise ValueError(
            "must be the name of an environment variable, without $, and not the secret itself"
        )
    return name


# Messages don't show it: the operator may have written the secret itself.
SecretVariable = Annotated[str, AfterValidator(_require_variable_name), Field(repr=False)]


def _require_source(source: str) -> str:
    if not re.fullmatch(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)?", source):
        raise ValueError('must be "env:NAME" or "file:PATH", and not the secret itself')
    return source


# "env:NAME", "file:PATH" or "". `Source` is for a list's elements; messages don't show a `SecretSource`.
Source = Annotated[str, AfterValidator(_require_source)]
SecretSource = Annotated[Source, Field(repr=False)]


def conflicting_setting(words: str, *at: str | int) -> PydanticCustomError:
    """The setting `at` contradicts others."""
    details = {"words": words, "at": at, "name": ".".join(map(str, at))}
    return PydanticCustomError("conflicting_setting", "{name}: {words}", details)


class Section(BaseModel):
    """No message shows a field with `repr=False`, which may be secret."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _reject_boolean(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would read `true` as 1."""
        assert info.field_name is not None
        annotation = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and {int, float} & {annotation, *get_args(annotation)}:
            raise ValueError("must be a number")
        return value


_Built = TypeVar("_Built")


def built_from(section: Section, target: type[_Built], **computed: Any) -> _Built:
    """A field with the name of a setting gets its value; `computed` has the others and those that aren't
    simply the setting. So a new setting is a line in its section and a field of the dataclass."""
    settings = type(section).model_fields
    names = {field.name for field in fields(target) if field.init} & settings.keys()  # type: ignore[arg-type]
    return target(**{name: getattr(section, name) for name in names - computed.keys()}, **computed)


def shown_variable(name: str) -> str:
    """Lower-case letters aren't shown: it may be a secret written instead of a name."""
    return f"${name}" if name == name.upper() else "the variable that this setting names"
