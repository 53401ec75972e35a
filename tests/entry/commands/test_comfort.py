"""Tests the comfort of the program for people: help, examples, shell completion, and tables that fit."""

import importlib
import re
import shlex
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.main import get_command

import tollkeeper
from tests.support.program import Program
from tests.support.tables import each
from tests.support.terminal import run_on_terminal
from tollkeeper.entry.commands import main
from tollkeeper.entry.commands.demo import RunningDemo, _welcome, pasted_command
from tollkeeper.entry.commands.demo_console import DemoConsole
from tollkeeper.entry.commands.output import Listing, fitting_table
from tollkeeper.setup.demonstration import DemoTenant

_EXAMPLE = "Example: "
_WITHOUT_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _commands() -> list[tuple[str, Any]]:
    found = []
    for name, file, _ in main._COMMANDS:
        command: Any = get_command(importlib.import_module(f"tollkeeper.entry.commands.{file}").app)
        verbs = getattr(command, "commands", None)
        found += [(name, command)] if verbs is None else [(f"{name} {v}", verbs[v]) for v in verbs]
    return found


@each(("name", "command"), _commands)
def test_every_command_has_an_example_that_it_understands(name: str, command: Any) -> None:
    assert command.epilog.startswith(_EXAMPLE)
    line = command.epilog.removeprefix(_EXAMPLE)
    assert len(line) <= 70
    program, *words = shlex.split(line)
    assert program == "tollkeeper"
    own = name.split()
    assert words[: len(own)] == own
    command.make_context(name, words[len(own) :])


def test_the_version(cold_program: Program) -> None:
    outcome = cold_program.raw("--version")
    assert (outcome.code, outcome.out) == (0, f"tollkeeper {tollkeeper.__version__}\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tollkeeper cre", {"credit"}),
        ("tollkeeper organization gr", {"grant-check"}),
        ("tollkeeper cap set Acme 1 --period mon", {"month"}),
        ("tollkeeper serve --wor", {"--workers"}),
        ("tollkeeper project-key create Web app --permission inf", {"inference:write"}),
    ],
)
def test_the_shell_completes(program: Program, words: str, expected: set[str]) -> None:
    asked = program.with_environment(
        _TOLLKEEPER_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )
    outcome = asked.raw()
    assert set(outcome.out.split()) == expected


def test_the_script_for_a_shell_is_shown(program: Program) -> None:
    # Otherwise Typer would detect the shell of the process that runs the tests.
    named = program.with_environment(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    outcome = named.raw("--show-completion", "bash")
    assert outcome.code == 0
    assert "complete -o default -F _tollkeeper_completion tollkeeper" in outcome.out


def test_amounts_are_decimals_in_help(program: Program) -> None:
    assert "<decimal>" in program.raw("credit", "grant", "--help").out


@pytest.mark.slow
def test_tables_fit_a_terminal_of_80_columns(program: Program) -> None:
    organization = program.json("organization", "create", f"wide {uuid4().hex}")["id"]
    project = program.json("project", "create", organization, "A project with a longer name")["id"]
    key = program.json("project-key", "create", project, "app")["id"]
    for line in (
        ("organization", "list"),
        ("project", "list", organization),
        ("project-key", "list", project),
        ("audit", "list", "--organization", organization),
        ("costs", organization),
        ("activity", "list"),
        ("project-key", "suspend", "--help"),
    ):
        shown = run_on_terminal(program, *line)
        assert shown.code == 0, shown.out
        rows = [_WITHOUT_STYLE.sub("", row) for row in shown.out.splitlines()]
        assert max(map(len, rows)) <= 80, shown.out
    # The displayed beginning of an id is enough to select the key.
    shown = run_on_terminal(program, "project-key", "list", project)
    assert key[:8] in shown.out
    assert program.json("project-key", "suspend", key[:8])["id"] == key


def test_a_pipe_gets_plain_lines(program: Program) -> None:
    organization = program.json("organization", "create", f"plain {uuid4().hex}")["id"]
    project = program.json("project", "create", organization, "Web")["id"]
    header, row = program.run("project", "list", organization).out.splitlines()
    assert header.split("\t") == ["id", "name", "status", "models", "created_at", "archived_at"]
    assert row.split("\t")[:3] == [project, "Web", "active"]
    assert row.split("\t")[4].endswith("Z")


def test_ids_are_cut_only_where_they_still_differ() -> None:
    first, second = "0" * 35 + "1", "0" * 35 + "2"
    listing = Listing([{"id": first}, {"id": second}], columns=("id",), short_ids=("id",))
    table = fitting_table(listing, 10)
    assert [str(cell) for cell in table.columns[0].cells] == [first, second]
    other = Listing([{"id": "a" * 36}, {"id": "b" * 36}], columns=("id",), short_ids=("id",))
    assert [str(cell) for cell in fitting_table(other, 10).columns[0].cells] == ["a" * 8, "b" * 8]
    assert [str(cell) for cell in fitting_table(other, 40).columns[0].cells] == [
        "a" * 36,
        "b" * 36,
    ]


def test_a_refusal_on_a_terminal_says_what_to_do_next(program: Program) -> None:
    shown = run_on_terminal(program, "organization", "show", "nobody")
    assert shown.code == 1
    assert "tollkeeper: There is no organization nobody.\n" in shown.out
    assert "tollkeeper organization list" in shown.out


_TENANT = DemoTenant(
    organization_id="5f0c64a8-3c5e-4f37-9a3b-7f1d2f8f4c11",
    project_id="5f0c64a8-3c5e-4f37-9a3b-7f1d2f8f4c12",
    admin_key="tka_" + "x" * 38,
    project_key="tkp_" + "x" * 38,
)
_ADDRESSES = {"public": "http://127.0.0.1:8080", "operator": "http://127.0.0.1:8081"}


def test_the_page_of_the_demo_fits_a_screen() -> None:
    demo = RunningDemo(
        model="tollkeeper/smollm2-135m-instruct",
        command=".venv/bin/tollkeeper",
        tenant=_TENANT,
        console=DemoConsole("http://127.0.0.1:8082", "t" * 43),
        addresses=_ADDRESSES,
    )
    engine = "It answers: " + "a sentence of some length, " * 5
    shown = _welcome(demo, engine)
    lines = shown.strip().splitlines()
    assert 20 <= len(lines) <= 30
    assert max(map(len, lines)) <= 80
    assert lines[2].split() == ["console", "http://127.0.0.1:8082"]
    assert f".venv/bin/tollkeeper costs {_TENANT.organization_id[:8]}" in shown
    without = _welcome(replace(demo, console=DemoConsole("", "")), "It answers.")
    assert "not installed" in without


def test_the_command_to_paste_calls_this_program(tmp_path: Path) -> None:
    line = [*shlex.split(pasted_command(tmp_path / "x.toml")), "--version"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    assert tollkeeper.__version__ in done.stdout


@pytest.mark.slow
def test_ctrl_c_is_answered(installation: Any) -> None:
    program, _ = installation()
    program.json("migrate")
    process = subprocess.Popen(
        program.line("serve", "--json"),
        cwd=program.folder,
        env=program.process_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
    assert "stopping: open requests have up to 20 s to end" in errors
    assert '"event": "stopped"' in errors
