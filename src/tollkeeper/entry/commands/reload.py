"""`tollkeeper reload`: makes the running gateway read its models again."""

import os
import signal

from tollkeeper.core.errors import StateConflict
from tollkeeper.entry.commands.command import Invocation, command, command_app
from tollkeeper.entry.commands.output import Record
from tollkeeper.entry.presence import serving_pids
from tollkeeper.setup import build_catalog

app = command_app()


@command(app, "reload", example="tollkeeper reload")
def reload(invocation: Invocation) -> Record:
    """Make the running gateway read its models and prices again.

    Only changes of [[models]] take effect; all other changed settings need a restart."""
    settings = invocation.settings()
    # Shows errors here, which the gateway would only log.
    build_catalog(settings)
    pids = serving_pids(settings)
    if not pids:
        raise StateConflict(f"No gateway serves with the data folder {settings.database.data_dir}.")
    for pid in pids:
        os.kill(pid, signal.SIGHUP)
    return Record({"pids": pids}, note="The gateway reads its models and prices again.")
