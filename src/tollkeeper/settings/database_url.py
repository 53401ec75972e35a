"""Whether `database.url` can be read, without repeating its password."""

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from tollkeeper.backends.config import shown_url

_SCHEMES = ("postgresql://", "postgres://")
_MALFORMED = (
    "is not a valid PostgreSQL address; in user and password every character other than letters, "
    "digits and -._~ must be percent-encoded"
)


def check_database_url(url: str) -> None:
    """Raises ValueError. The driver's own messages quote the address, so they are not passed on."""
    if not url.startswith(_SCHEMES):
        # Without a scheme it may be anything, a password too.
        shown = f"{shown_url(url)!r} " if "://" in url else ""
        raise ValueError(
            f"{shown}must start with postgresql://, or be empty for the embedded PostgreSQL"
        )
    try:
        parts = conninfo_to_dict(url)
    except ProgrammingError:
        raise ValueError(_MALFORMED) from None
    host, name = str(parts.get("host") or ""), str(parts.get("dbname") or "")
    ports = str(parts.get("port") or "")
    # A part of a password that is not encoded is taken for a host, a port or a database, and the
    # driver would say its name when it cannot be found.
    if (
        "@" in host
        or ("@" in name and "%40" not in url)
        or not all(port.isdecimal() for port in ports.split(",") if port)
    ):
        raise ValueError(_MALFORMED)
