"""`tollkeeper database`: changes the PostgreSQL server that gateways use."""

import asyncio

import psycopg

from tollkeeper.core.errors import Unavailable
from tollkeeper.database.fence import Fence
from tollkeeper.database.reachability import unreachable_detail
from tollkeeper.entry.commands.command import Invocation, command, noun_app
from tollkeeper.entry.commands.database import command_database
from tollkeeper.entry.commands.output import Record

app = noun_app("Change the PostgreSQL server that gateways use.")


@command(app, "accept", example="tollkeeper database accept")
def database_accept(invocation: Invocation) -> Record:
    """Use a server that gateways refuse as old or different.

    Gateways refuse a server if they have seen a newer server or another database. This command
    makes gateways use the only server that accepts writes. From then on, every gateway refuses the
    servers that were used before."""
    settings = invocation.settings()
    with command_database(settings) as conninfo:
        try:
            accepted = asyncio.run(Fence(conninfo, settings.database.seen_file).accept())
        except psycopg.Error as exc:
            raise Unavailable(unreachable_detail(conninfo, exc)) from exc
    # It can exceed 2**53, the largest integer that all JSON readers represent exactly.
    shown = {**accepted._asdict(), "system_identifier": str(accepted.system_identifier)}
    return Record(shown, note="Gateways will use this server after their next heartbeat.")
