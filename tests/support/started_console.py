"""A console as users start it: as a process, by the command, with the settings of a site."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.console_site import ConsoleSite
from tests.support.databases import data_dir_beside, database_url
from tests.support.program import Program, running_console


@dataclass(frozen=True)
class StartedConsole:
    address: str
    token: str
    log: Path


@contextmanager
def started_console(site: ConsoleSite, conninfo: str, folder: Path) -> Iterator[StartedConsole]:
    """Runs a console that uses the database, gateway and judge of the site."""
    written = site.settings.model_dump(mode="json", exclude_defaults=True)
    data_dir = data_dir_beside(site.settings.database.data_dir, conninfo)
    written["database"] = {"data_dir": str(data_dir), "url": database_url(conninfo)}
    written["console"] = {"port": 0}
    environment = {f"TOLLKEEPER_{name.upper()}": json.dumps(part) for name, part in written.items()}
    (folder / "tollkeeper.toml").touch()
    program = Program(folder / "tollkeeper.toml", folder, environment)
    with running_console(program, log=folder / "console.log") as (_, printed):
        yield StartedConsole(printed["console"], printed["operator_token"], folder / "console.log")
