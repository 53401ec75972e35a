"""Reads the session header, a hint for cache affinity, which has two names."""

from dataclasses import replace
from functools import cache

from tollkeeper.api.http.endpoint import HeaderIndex, HeaderParameter
from tollkeeper.domain.conventions import SESSION_HEADERS
from tollkeeper.domain.errors import InvalidRequest

SESSION_LENGTH_MAX = 512
SESSION_HEADER = HeaderParameter(
    name=SESSION_HEADERS[0],
    description="A cache-affinity hint, isolated to organization and project.",
    length_min=1,
    length_max=SESSION_LENGTH_MAX,
    # What HTTP allows in a value: no control characters, and no blanks at its ends.
    pattern=r"^[!-~\x80-\xff]([\t -~\x80-\xff]*[!-~\x80-\xff])?$",
)
# The second name is accepted for compatibility.
SESSION_HEADER_ALIAS = replace(
    SESSION_HEADER, name=SESSION_HEADERS[1], description=f"The same as {SESSION_HEADERS[0]}."
)


@cache  # The names are few: those of the settings.
def _index_name(name: str) -> bytes:
    return name.lower().encode()


def session_of(headers: HeaderIndex, names: tuple[str, ...]) -> str | None:
    """The first session header in the order of `names`. All session headers must be valid."""
    session: str | None = None
    for name in names:
        for value in headers.get(_index_name(name), ()):
            text = value.decode("latin-1")
            if not 1 <= len(text) <= SESSION_LENGTH_MAX:
                raise InvalidRequest(
                    f"The header must have 1 to {SESSION_LENGTH_MAX} characters.", param=name
                )
            session = text if session is None else session
    return session
