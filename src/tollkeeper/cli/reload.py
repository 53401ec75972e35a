"""`tollkeeper reload`: tells the running gateway to read its settings file again."""

import os
import signal

from tollkeeper.bootstrap import build_catalog
from tollkeeper.cli.command import Invocation, command, command_app
from tollkeeper.cli.output import Record
from tollkeeper.domain.errors import StateConflict
from tollkeeper.hosting.presence import serving_pids

app = command_app()


@command(app, "reload", example="tollkeeper reload")
def reload(invocation: Invocation) -> Record:
    """Send a changed catalogue to the running gateway."""
    settings = invocation.settings()
    # Reports an invalid catalogue here as well as in the gateway's log.
    build_catalog(settings)
    pids = serving_pids(settings)
    if not pids:
        raise StateConflict(f"No gateway serves with the data folder {settings.database.data_dir}.")
    for pid in pids:
        os.kill(pid, signal.SIGHUP)
    return Record({"pids": pids}, note="The gateway reads its settings again.")
