"""Finds the database, or starts the embedded one."""

from collections.abc import Iterator
from contextlib import contextmanager

from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.settings import Settings


@contextmanager
def located_database(settings: Settings) -> Iterator[str]:
    """Yields the connection string."""
    if settings.database.url:
        yield settings.database.url
        return
    with EmbeddedPostgres(settings.database.data_dir) as server:
        yield server.conninfo
