"""Tests the program as a whole: its list of commands, common options, and the refusal of wrong usage."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.main import get_command

from tests.support.program import Program
from tests.support.tables import each
from tollkeeper.entry.commands import main

_MODULES = {name: f"tollkeeper.entry.commands.{file}" for name, file, _ in main._COMMANDS}


def _commands() -> list[tuple[str, Any]]:
    found = []
    for name, module in _MODULES.items():
        command: Any = get_command(importlib.import_module(module).app)
        verbs = getattr(command, "commands", None)
        found += [(name, command)] if verbs is None else [(f"{name} {v}", verbs[v]) for v in verbs]
    return found


@each(("name", "command"), _commands)
def test_every_command_takes_config_and_json_and_explains_itself(name: str, command: Any) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--config", "--json"} <= options
    assert command.help, name


def test_help_lists_every_command(cold_program: Program) -> None:
    outcome = cold_program.raw("--help")
    assert outcome.code == 0
    assert outcome.err == ""
    for name in _MODULES:
        assert f" {name} " in outcome.out


def test_the_list_of_commands_loads_none_of_them() -> None:
    line = (
        "import sys, tollkeeper.entry.commands.main;"
        " print('psycopg' in sys.modules, 'pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", "False"]


def test_shared_options_hold_wherever_they_stand(program: Program, organization: str) -> None:
    config = str(program.config)
    for line in (
        ("--config", config, "--json", "organization", "show", organization),
        ("organization", "--config", config, "--json", "show", organization),
        ("--json", "organization", "show", organization, f"--config={config}"),
    ):
        outcome = program.raw(*line)
        assert (outcome.code, outcome.err) == (0, ""), line
        assert json.loads(outcome.out)["id"] == organization


def test_config_comes_from_the_environment_and_the_line_wins(
    program: Program, organization: str
) -> None:
    named = program.with_environment(TOLLKEEPER_CONFIG=str(program.config))
    assert named.raw("organization", "show", organization).code == 0
    lost = program.with_environment(TOLLKEEPER_CONFIG="absent.toml")
    assert "absent.toml cannot be read" in lost.raw("organization", "show", organization).err
    line = ("--config", "absent.toml", "organization", "show", organization)
    assert lost.raw(*line, "--config", str(program.config)).code == 0


@each(
    "line",
    [
        ("organisation", "list"),
        ("organization", "create"),
        ("organization", "list", "--nonsense"),
        ("policy", "publish", "pol_1", "--revision", "first"),
        ("organization", "create", "\udcff"),
    ],
)
def test_wrong_usage_is_2(program: Program, line: tuple[str, ...]) -> None:
    outcome = program.raw(*line)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err


def test_a_reader_that_goes_away_is_no_fault(cold_program: Program, organization: str) -> None:
    """The reader closes the pipe early, as in `tollkeeper ... | head -c0`. There is no traceback."""
    process = subprocess.Popen(
        cold_program.line("organization", "show", organization),
        cwd=cold_program.folder,
        env=cold_program.process_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as errors:
        assert b"Traceback" not in errors.read()
    process.wait(timeout=60)


def test_a_command_in_the_wrong_folder_creates_no_database(
    program: Program, tmp_path: Path
) -> None:
    lost = replace(program, folder=tmp_path)
    for line in (
        ("organization", "list"),
        ("credit", "show", "acme"),
        ("reload",),
        ("model", "import"),
        ("console",),
    ):
        outcome = lost.raw(*line)
        assert (outcome.code, outcome.out) == (1, ""), line
        assert outcome.err == (
            f"tollkeeper: There is no settings file {tmp_path / 'tollkeeper.toml'}, and neither --config "
            "nor $TOLLKEEPER_CONFIG names another one.\n"
        )
    doctor = lost.raw("doctor")
    assert doctor.code == 1
    assert f"There is no settings file {tmp_path}" in doctor.out.replace("\n", "")
    assert list(tmp_path.iterdir()) == []


def test_without_a_settings_file_commands_use_the_database_that_is_there(
    program: Program, tmp_path: Path, shared_conninfo: str, data_dir: Path
) -> None:
    """The demo and containers need no settings file."""
    lost = replace(program, folder=tmp_path)
    beside = lost.with_environment(TOLLKEEPER_DATABASE__DATA_DIR=str(data_dir))
    assert beside.raw("organization", "list").code == 0
    server = psycopg.conninfo.conninfo_to_dict(shared_conninfo)
    url = f"postgresql://{server['user']}@/{server['dbname']}?host={server['host']}"
    elsewhere = lost.with_environment(TOLLKEEPER_DATABASE__URL=url)
    assert elsewhere.raw("organization", "list").code == 0


@pytest.mark.slow
def test_migrate_creates_the_database_without_a_settings_file(
    program: Program, tmp_path: Path
) -> None:
    lost = replace(program, folder=tmp_path)
    assert lost.raw("migrate").code == 0
    assert lost.raw("organization", "list", "--json").out == '{"data":[]}\n'
