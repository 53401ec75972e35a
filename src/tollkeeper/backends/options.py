"""Options without a published meaning, put where a model says that its backend reads them."""

from collections.abc import Iterable

from tollkeeper.domain.catalog import Model
from tollkeeper.domain.prompt import FreeObject, Option


def place_options(body: FreeObject, model: Model, options: Iterable[Option]) -> None:
    """`thinking` may become `chat_template_kwargs.enable_thinking`: a path has folders. Two
    options may share a folder."""
    for option in options:
        *folders, name = model.options[option.name].split(".")
        place = body
        for folder in folders:
            found = place.get(folder)
            place[folder] = place = dict(found) if isinstance(found, dict) else {}
        place[name] = option.value
