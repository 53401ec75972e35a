"""Runs the PostgreSQL server of a benchmarked gateway."""

import os
import signal
import time

from tollkeeper.setup.embedded.postgres import EmbeddedPostgres

# How long the database stays down during a restart.
_DEAD_FOR_S = 2


class Database(EmbeddedPostgres):
    def restart(self) -> None:
        """Stop the server without a clean shutdown, as if the machine had failed, and start it again."""
        [number, *_] = (self._data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
        os.kill(int(number), signal.SIGQUIT)
        time.sleep(_DEAD_FOR_S)
        self.ensure_running()
