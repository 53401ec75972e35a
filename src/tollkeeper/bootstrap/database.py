"""Finds the database: the operator's own, or the embedded one, which it starts."""

from collections.abc import Iterator
from contextlib import contextmanager

from tollkeeper.embedded.postgres import EmbeddedPostgres
from tollkeeper.settings import Settings


@contextmanager
def located_database(settings: Settings) -> Iterator[str]:
    """Yields the connection string of the operator's own database, or of the embedded one, which
    runs for the duration of the context."""
    if settings.database.url:
        yield settings.database.url
        return
    with EmbeddedPostgres(settings.database.data_dir) as server:
        yield server.conninfo
