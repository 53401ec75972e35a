"""Limits the texts that are judged at the same time in the background, for which no client waits.
There is a limit for their number, and one for the sum of their characters."""

from collections import Counter

from tollkeeper.domain.access import OrganizationId
from tollkeeper.runtime.fair_queue import share


class BackgroundTextLimits:
    """Counts the texts that are being judged. One organization may use at most seven eighths of
    each limit, so that its texts cannot block the policies of other organizations."""

    def __init__(self) -> None:
        # The keys are organization ids as integers.
        self._texts: Counter[int] = Counter()
        self._characters: Counter[int] = Counter()

    def take(
        self, organization_id: OrganizationId, length: int, *, texts_max: int, characters_max: int
    ) -> bool:
        """Counts one more text of this length and returns True. If a limit does not allow the text,
        does not count it and returns False."""
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
