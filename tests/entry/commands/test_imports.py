"""Tests that commands do not import modules of the gateway, because imports take most of a command's time."""

from pathlib import Path

import pytest

from tests.support.program import Program

_RUN = """
import pathlib, sys
from tollkeeper.entry.commands.main import main
sys.argv = ["tollkeeper", *sys.argv[2:]]
try:
    main()
finally:
    pathlib.Path(sys.orig_argv[3]).write_text("\\n".join(sys.modules))
"""
# Modules that a command with a running database must not import.
_NOT_OF_A_COMMAND = (
    *("alembic", "sqlalchemy", "rich", "pygments", "markdown_it", "structlog", "prometheus_client"),
    *("jinja2", "starlette", "opentelemetry", "uvloop", "httptools"),
    *("tollkeeper.faces", "tollkeeper.console", "tollkeeper.setup.calls"),
    *("tollkeeper.calls", "tollkeeper.providers.replica", "tollkeeper.setup.embedded.engine"),
)
_NOT_OF_HELP = (
    *_NOT_OF_A_COMMAND,
    *("asyncio", "ssl", "pydantic_settings", "psycopg", "msgspec", "cryptography"),
    *("tollkeeper.setup.settings", "tollkeeper.setup", "tollkeeper.database"),
)


def _unwanted(program: Program, folder: Path, unwanted: tuple[str, ...], *line: str) -> list[str]:
    noted = folder / "modules"
    outcome = program.in_a_process("-c", _RUN, str(noted), *line)
    assert outcome.code == 0, outcome.err
    return [
        name
        for name in noted.read_text().splitlines()
        if any(name == one or name.startswith(f"{one}.") for one in unwanted)
    ]


@pytest.mark.parametrize("line", ["", "organization list", "credit grant", "limit"])
def test_help(cold_program: Program, tmp_path: Path, line: str) -> None:
    assert _unwanted(cold_program, tmp_path, _NOT_OF_HELP, *line.split(), "--help") == []


@pytest.mark.parametrize("line", ["organization list", "credit show", "cap show", "audit list"])
def test_a_command_on_a_running_database(
    cold_program: Program, organization: str, tmp_path: Path, line: str
) -> None:
    arguments = line.split()
    if arguments[1] == "show":
        arguments.append(organization)
    arguments += ["--json", "--config", str(cold_program.config)]
    assert _unwanted(cold_program, tmp_path, _NOT_OF_A_COMMAND, *arguments) == []
