"""Maps search results to the text of an answer that cites them."""

from tollkeeper.backends.gemini.records import Grounding, GroundingChunk, GroundingSupport
from tollkeeper.domain.inference import Annotation

_CITATIONS_MAX = 4096


class GroundedText:
    """Collects an answer's text and its sources. Later records repeat earlier ones."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        # In the order of the searches, each once. Empty ones have no fee.
        self._queries: dict[str, None] = {}
        self._found: list[GroundingChunk] = []
        self._supports: list[GroundingSupport] = []

    def add(self, text: str) -> None:
        self._pieces.append(text)

    def take(self, grounding: Grounding) -> None:
        self._queries |= dict.fromkeys(filter(None, grounding.web_search_queries or ()))
        self._found = grounding.grounding_chunks or self._found
        self._supports = grounding.grounding_supports or self._supports

    @property
    def searches(self) -> int:
        return len(self._queries)

    def annotations(self) -> tuple[Annotation, ...]:
        """Returns the citations, by characters of the text. Omits a source that no text cites."""
        written = "".join(self._pieces).encode()
        citations = []
        for support in self._supports:
            segment = support.segment
            if segment is None:
                continue
            start = _characters(written, segment.start_index or 0)
            end = _characters(written, segment.end_index or 0)
            for index in support.grounding_chunk_indices or ():
                page = self._found[index].web if 0 <= index < len(self._found) else None
                if page is not None and page.uri and start <= end:
                    citations.append(Annotation(page.uri, page.title or "", start, end))
        return tuple(citations[:_CITATIONS_MAX])


def _characters(written: bytes, count: int) -> int:
    """Returns the number of characters in this many bytes of UTF-8."""
    return len(written[: max(0, count)].decode(errors="ignore"))
