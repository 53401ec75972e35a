"""Locates the database. Starts the embedded database if the settings name no external one."""

from collections.abc import Iterator
from contextlib import contextmanager

from tollkeeper.embedded.postgres import EmbeddedPostgres
from tollkeeper.settings import Settings


@contextmanager
def located_database(settings: Settings) -> Iterator[str]:
    """Yields the connection string of the external database in the settings. Without one, runs the embedded
    database during the `with` block, and yields its connection string."""
    if settings.database.url:
        yield settings.database.url
        return
    with EmbeddedPostgres(settings.database.data_dir) as server:
        yield server.conninfo
