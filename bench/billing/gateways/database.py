"""The PostgreSQL server of a gateway on trial."""

import os
import signal
import time

from tollkeeper.embedded.postgres import EmbeddedPostgres

_DEAD_FOR_S = 2


class Database(EmbeddedPostgres):
    def restart(self) -> None:
        """Kill the server's main process, as a machine that fails does, and start the server again."""
        [number, *_] = (self._data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
        os.kill(int(number), signal.SIGQUIT)
        time.sleep(_DEAD_FOR_S)
        self.ensure_running()
