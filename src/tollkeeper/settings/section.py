"""The base of every section of the settings."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A field with `repr=False` is a secret, or may be one: no message ever shows its value."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )
