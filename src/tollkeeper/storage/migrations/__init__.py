"""The migrations of the schema. Alembic applies them; each one is plain SQL in `versions/`."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, create_engine
from sqlalchemy.exc import DBAPIError

from tollkeeper.domain.errors import Unavailable

_FOLDER = Path(__file__).parent


def migrate(conninfo: str) -> None:
    """Upgrades the schema to the revision of this code. Concurrent runs wait for each other."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    engine = create_engine(_sqlalchemy_url(conninfo))
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DBAPIError as exc:
        reason = str(exc.orig).strip().splitlines()[0]
        raise Unavailable(f"The database cannot be migrated: {reason}") from exc
    finally:
        engine.dispose()


def _sqlalchemy_url(conninfo: str) -> URL:
    parameters = {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
    return URL.create("postgresql+psycopg", query=parameters)
