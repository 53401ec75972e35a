"""Places options without a published meaning in the fields that a model's settings name."""

from collections.abc import Iterable

from tollkeeper.domain.catalog import Model
from tollkeeper.domain.prompt import FreeObject, Option


def place_options(body: FreeObject, model: Model, options: Iterable[Option]) -> None:
    """Adds the options to the body. `thinking` may become `chat_template_kwargs.enable_thinking`:
    the path names nested objects, which options may share."""
    for option in options:
        *parents, name = model.options[option.name].split(".")
        place = body
        for folder in parents:
            found = place.get(folder)
            place[folder] = place = dict(found) if isinstance(found, dict) else {}
        place[name] = option.value
