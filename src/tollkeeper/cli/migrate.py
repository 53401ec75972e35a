"""`tollkeeper migrate`: brings the schema to this code's revision."""

from alembic.util import CommandError

from tollkeeper.bootstrap import located_database
from tollkeeper.cli.answers import Record
from tollkeeper.cli.command import Invocation, command, command_app
from tollkeeper.storage.migrations import migrate as bring_up_to_date
from tollkeeper.storage.schema import check_database, code_revision

app = command_app()


@command(app, "migrate")
def migrate(invocation: Invocation) -> Record:
    """Bring the database's schema up to date."""
    with located_database(invocation.settings()) as conninfo:
        try:
            bring_up_to_date(conninfo)
        except CommandError:
            # Alembic stumbles over a revision it does not know; the check says it in our words.
            check_database(conninfo)
            raise
    return Record({"revision": code_revision()}, note="The schema is up to date.")
