"""`tollkeeper migrate`: brings the schema to this code's revision."""

from alembic.util import CommandError

from tollkeeper.bootstrap import located_database
from tollkeeper.cli.command import Invocation, command, command_app
from tollkeeper.cli.output import Record
from tollkeeper.cli.progress import working
from tollkeeper.storage.migrations import migrate as migrate_schema
from tollkeeper.storage.schema import check_database, code_revision

app = command_app()


@command(app, "migrate", example="tollkeeper migrate")
def migrate(invocation: Invocation) -> Record:
    """Bring the database's schema up to date."""
    with located_database(invocation.settings()) as conninfo:
        try:
            with working("Migrating the schema", quiet=invocation.as_json):
                migrate_schema(conninfo)
        except CommandError:
            # Alembic does not know a revision of newer code. The check has a clearer message for it.
            check_database(conninfo)
            raise
    return Record({"revision": code_revision()}, note="The schema is up to date.")
