"""`tollkeeper migrate`: brings the schema to this version's revision."""

from typing import Annotated

import typer

from tollkeeper.database.fence import find_newest_server
from tollkeeper.database.migrations import migrate as migrate_schema
from tollkeeper.database.schema import check_database, code_revision
from tollkeeper.entry.commands.command import Invocation, command, command_app
from tollkeeper.entry.commands.database import command_database
from tollkeeper.entry.commands.output import Record
from tollkeeper.entry.commands.progress import working

app = command_app()


@command(app, "migrate", example="tollkeeper migrate --expand", begins=True)
def migrate(
    invocation: Invocation,
    expand: Annotated[
        bool,
        typer.Option(
            "--expand",
            help="Apply only migrations with which older versions can work. Use this option before a "
            "rollout.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also apply migrations with which running processes of older versions cannot work. "
            "These processes then end.",
        ),
    ] = False,
) -> Record:
    """Create or update the database schema."""
    settings = invocation.settings()
    with (
        command_database(settings) as conninfo,
        working("Migrating the schema", quiet=invocation.as_json),
    ):
        address, _ = find_newest_server(
            conninfo, settings.database.seen_file, before_migrating=True
        )
        revision = migrate_schema(address, serving_only=expand, force=force)
        if revision > code_revision():
            # Raises if the schema is too new for this version.
            state = check_database(address)
            note = f"There is nothing to migrate: the schema is at {state.description}."
        elif revision < code_revision():
            note = (
                f"The schema is at {revision}, with which this version can serve. When no process of an "
                f"older version runs, `tollkeeper migrate` brings the schema to {code_revision()}."
            )
        else:
            note = "The schema is up to date."
    return Record({"revision": revision}, note=note)
