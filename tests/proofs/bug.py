"""What a planted bug is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    file: str
    right: str
    wrong: str
    # Files below `tests/`.
    caught_by: tuple[str, ...]
    # Further replacements, where another check would catch the bug first.
    also: tuple[tuple[str, str], ...] = ()
