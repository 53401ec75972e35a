"""Reads cache marks (`cache_control`), with which clients mark a part or tool for the provider's
prompt cache. In the Messages and Converse protocols, no other property in `extra` has a meaning: it
would be lost, so it's rejected unless it doesn't affect the answer."""

from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.messages_behavior import PromptCaching
from tollkeeper.core.prompt import FreeObject
from tollkeeper.providers.request_fields import check_extra

_MARK = "cache_control"
_LIFETIMES = ("5m", "1h")


class Marks:
    def __init__(self, caching: PromptCaching) -> None:
        self._caching = caching
        # On any part or tool.
        self.has_marks = False

    def read(self, extra: FreeObject | None, place: str) -> FreeObject:
        if not extra:
            return {}
        check_extra(extra, place)
        mark = extra.get(_MARK)
        return {} if mark is None else {_MARK: self._checked(mark, f"{place}.{_MARK}")}

    def automatic(self) -> FreeObject | None:
        """For the whole prompt, as the model's settings require. None if the client has set
        marks."""
        match self._caching:
            case _ if self.has_marks:
                return None
            case PromptCaching.FIVE_MINUTES:
                return {"type": "ephemeral"}
            case PromptCaching.ONE_HOUR:
                return {"type": "ephemeral", "ttl": "1h"}
        return None

    def _checked(self, mark: object, place: str) -> FreeObject:
        if self._caching is PromptCaching.OFF:
            raise OptionUnsupported("This model does not cache prompts.", param=place)
        if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
            raise InvalidRequest("The type of cache_control must be ephemeral.", param=place)
        lifetime = mark.get("ttl")
        if lifetime not in (None, *_LIFETIMES) or set(mark) - {"type", "ttl"}:
            raise InvalidRequest(
                "cache_control may contain only a type, and a ttl of 5m or 1h.", param=place
            )
        self.has_marks = True
        return {"type": "ephemeral"} if lifetime is None else {"type": "ephemeral", "ttl": lifetime}
