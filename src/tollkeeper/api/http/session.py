"""The session header: a cache-affinity hint under two names."""

from tollkeeper.api.http.endpoint import HeaderIndex, HeaderParameter
from tollkeeper.api.http.request import header_values
from tollkeeper.domain.conventions import SESSION_HEADERS
from tollkeeper.domain.errors import InvalidRequest

SESSION_LENGTH_MAX = 512
SESSION_HEADER = HeaderParameter(
    name=SESSION_HEADERS[0],
    description="A cache-affinity hint, isolated to organization and project.",
    length_min=1,
    length_max=SESSION_LENGTH_MAX,
    pattern=r"^[!-~]([ -~]*[!-~])?$",
)


def session_of(headers: HeaderIndex, names: tuple[str, ...]) -> str | None:
    """The first of the configured headers that is there; each that is there must be sound."""
    found: str | None = None
    for name in names:
        for value in header_values(headers, name.lower().encode()):
            text = value.decode("latin-1")
            if not 1 <= len(text) <= SESSION_LENGTH_MAX:
                raise InvalidRequest(
                    f"The header has 1 to {SESSION_LENGTH_MAX} characters.", param=name
                )
            found = text if found is None else found
    return found
