"""Adds options to a request. An option is a field of the client's request that the gateway only passes
on. For each option, the model's settings name the field in the request to the backend."""

from collections.abc import Iterable

from tollkeeper.domain.catalog import Model
from tollkeeper.domain.prompt import FreeObject, Option


def add_options(body: FreeObject, model: Model, options: Iterable[Option]) -> None:
    """Adds the options to the body. A field of the backend may be a path through nested objects, for
    example `chat_template_kwargs.enable_thinking`. Several options may be in the same object."""
    for option in options:
        *parents, name = model.options[option.name].split(".")
        target = body
        for parent in parents:
            existing = target.get(parent)
            target[parent] = target = dict(existing) if isinstance(existing, dict) else {}
        target[name] = option.value
