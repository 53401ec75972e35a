"""Limits the number and the characters of the texts judged in the background."""

from collections import Counter

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.runtime.fair_queue import share


class BackgroundTextLimits:
    """One organization may use seven eighths of each limit, so it can't block others' policies."""

    def __init__(self) -> None:
        # By organization.
        self._texts: Counter[int] = Counter()
        self._characters: Counter[int] = Counter()

    def take(
        self, organization_id: OrganizationId, length: int, *, texts_max: int, characters_max: int
    ) -> bool:
        """Counts nothing if it returns False."""
        owner = organization_id.int
        texts, characters = self._texts, self._characters
        if (
            texts.total() >= texts_max
            or texts[owner] >= share(texts_max)
            or characters.total() + length > characters_max
            or characters[owner] + length > share(characters_max)
        ):
            return False
        texts[owner] += 1
        characters[owner] += length
        return True

    def give_back(self, organization_id: OrganizationId, length: int) -> None:
        owner = organization_id.int
        self._texts[owner] -= 1
        self._characters[owner] -= length
        if not self._texts[owner]:
            del self._texts[owner], self._characters[owner]
