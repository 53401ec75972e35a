"""`tollkeeper database`: the PostgreSQL server that gateways use."""

import asyncio

import psycopg

from tollkeeper.cli.command import Invocation, command, noun_app
from tollkeeper.cli.database import command_database
from tollkeeper.cli.output import Record
from tollkeeper.domain.errors import Unavailable
from tollkeeper.storage.fence import Fence
from tollkeeper.storage.reachability import unreachable_detail

app = noun_app("The PostgreSQL server that gateways use.")


@command(app, "accept", example="tollkeeper database accept")
def database_accept(invocation: Invocation) -> Record:
    """Use the one server that accepts writes, although a newer server or another database was seen.

    Every gateway refuses the servers that were used before from then on."""
    settings = invocation.settings()
    with command_database(settings) as conninfo:
        try:
            accepted = asyncio.run(Fence(conninfo, settings.database.seen_file).accept())
        except psycopg.Error as exc:
            raise Unavailable(unreachable_detail(conninfo, exc)) from exc
    # A system identifier exceeds the largest exact number in JSON.
    shown = {**accepted._asdict(), "system_identifier": str(accepted.system_identifier)}
    return Record(shown, note="Gateways use this server from their next heartbeat on.")
