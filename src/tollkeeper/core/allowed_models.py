"""Checks models against the lists of a project or key."""

from collections.abc import Iterable, Sequence

from tollkeeper.core.errors import InvalidRequest

ENTRIES_MAX = 100
_ENTRY_LENGTH_MAX = 200
_WILDCARD = "*"


def allows(entries: Sequence[str], model_id: str) -> bool:
    """No entries allow every model, and `text*` every model whose id begins with the text."""
    return not entries or any(_matches(entry, model_id) for entry in entries)


def unmatched(entries: Iterable[str], model_ids: Sequence[str]) -> list[str]:
    return [
        entry for entry in entries if not any(_matches(entry, model_id) for model_id in model_ids)
    ]


def require_matches(entries: Iterable[str], model_ids: Sequence[str]) -> None:
    """Raises InvalidRequest if an entry matches no model: it is probably misspelt, and a list with only
    such entries would refuse every call."""
    if strange := unmatched(entries, model_ids):
        raise InvalidRequest(
            f"No model of the settings matches {', '.join(strange)}.", param="models"
        )


def checked_entries(entries: Iterable[str]) -> tuple[str, ...]:
    """Raises InvalidRequest if an entry or the list is invalid."""
    checked = tuple(entries)
    if len(checked) > ENTRIES_MAX:
        raise InvalidRequest(f"A list has at most {ENTRIES_MAX} models.", param="models")
    for entry in checked:
        if not 1 <= len(entry) <= _ENTRY_LENGTH_MAX:
            raise InvalidRequest(
                f"A model id has 1 to {_ENTRY_LENGTH_MAX} characters.", param="models"
            )
        if not entry.isprintable() or " " in entry or "," in entry:
            raise InvalidRequest(
                f"{entry!r} is not a model id: it has a space, a comma or a control character.",
                param="models",
            )
        if _WILDCARD in entry[:-1]:
            raise InvalidRequest(
                f"{entry!r} has a {_WILDCARD!r} that is not at its end.", param="models"
            )
    if len(set(checked)) < len(checked):
        raise InvalidRequest("The list names a model twice.", param="models")
    return checked


def _matches(entry: str, model_id: str) -> bool:
    if entry.endswith(_WILDCARD):
        return model_id.startswith(entry[:-1])
    return model_id == entry
