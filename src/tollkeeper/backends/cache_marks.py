"""Reads cache marks: the property `cache_control`, with which a client marks a part or a tool for the
prompt cache of the provider.

`extra` of a part or a tool contains the properties for which the gateway has no field. Of these, only
`cache_control` has a meaning in the Messages and Converse protocols. All other properties would be
lost, so they are rejected, unless they do not affect the answer.
"""

from tollkeeper.backends.request_fields import check_extra
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.messages_behavior import PromptCaching
from tollkeeper.domain.prompt import FreeObject

_MARK = "cache_control"
_LIFETIMES = ("5m", "1h")


class Marks:
    def __init__(self, caching: PromptCaching) -> None:
        self._caching = caching
        # Whether the client has marked any part or tool.
        self.has_marks = False

    def read(self, extra: FreeObject | None, place: str) -> FreeObject:
        if not extra:
            return {}
        check_extra(extra, place)
        mark = extra.get(_MARK)
        return {} if mark is None else {_MARK: self._checked(mark, f"{place}.{_MARK}")}

    def automatic(self) -> FreeObject | None:
        """Returns the cache mark for the whole prompt, as the model's settings require. Returns None
        if the settings require no mark, or if the client has set its own marks."""
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
