"""Tests that a signal at any moment of a start ends a server with code 0 and leaves no process running."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import signalled_program
from tests.support.program import Outcome, Program, postgres_runs

pytestmark = pytest.mark.slow

# At this moment (the end of an import), Python only reports an exception of a signal handler and
# then continues.
_DISCARDING = "_get_module_lock.<locals>.cb:call"
_MOMENTS = (
    "listeners:return",
    # PostgreSQL runs, but `EmbeddedPostgres.__enter__` has not returned: `__exit__` would not run.
    "_start:return",
    "check_database:call",
    # The event loop is created and runs. From `Supervisor.run` on, it handles the signals itself.
    "Runner.run:call",
    "run.<locals>.wrapper:call",
    "Supervisor.run:call",
    "WorkerProcess.start:return",
)


@pytest.fixture(scope="module")
def migrated(installation: Callable[[], tuple[Program, Path]]) -> tuple[Program, Path]:
    program, data_dir = installation()
    program.json("migrate")
    return program, data_dir


@pytest.fixture(autouse=True)
def _nothing_is_left(migrated: tuple[Program, Path]) -> Iterator[None]:
    """Checks after each test that no process and no temporary file of the program is left."""
    program, data_dir = migrated
    temporary = Path(program.environment["TMPDIR"])
    before = set(temporary.iterdir())
    yield
    assert not postgres_runs(data_dir)
    assert set(temporary.iterdir()) == before
    children = [
        child.info
        for child in psutil.process_iter(["cmdline", "cwd"])
        if child.info["cwd"] == str(program.folder)
    ]
    assert children == []


def _signalled(program: Program, number: str, moments: str, *line: str) -> Outcome:
    done = program.in_a_process(
        signalled_program.__file__, number, moments, *program.line(*line)[3:]
    )
    for moment in moments.split(","):
        assert f"{signalled_program.REACHED}: {moment}" in done.err, done.err
    return done


def _assert_stopped(outcome: Outcome) -> None:
    assert outcome.code == 0, outcome
    for complaint in ("Traceback", "Exception", "Warning"):
        assert complaint not in outcome.err, outcome.err


@pytest.mark.parametrize("moment", _MOMENTS)
def test_a_gateway_that_starts_ends_cleanly(migrated: tuple[Program, Path], moment: str) -> None:
    outcome = _signalled(migrated[0], "SIGTERM", moment, "serve", "--json")
    _assert_stopped(outcome)
    assert outcome.out == ""


def test_a_signal_that_python_discards_is_not_lost(migrated: tuple[Program, Path]) -> None:
    outcome = _signalled(migrated[0], "SIGTERM", _DISCARDING, "serve", "--json")
    assert (outcome.code, outcome.out) == (0, ""), outcome
    assert "Exception ignored" in outcome.err


@pytest.mark.parametrize("moment", ["_start:return", "Runner.run:call"])
def test_ctrl_c_ends_it_the_same_way(migrated: tuple[Program, Path], moment: str) -> None:
    _assert_stopped(_signalled(migrated[0], "SIGINT", moment, "serve", "--json"))


@pytest.mark.parametrize("first", ["_start:return", "Supervisor.run:call"])
def test_a_second_signal_does_not_interrupt_the_stop(
    migrated: tuple[Program, Path], first: str
) -> None:
    moments = f"{first},EmbeddedPostgres.__exit__:call"
    _assert_stopped(_signalled(migrated[0], "SIGTERM", moments, "serve", "--json"))


@pytest.mark.parametrize("moment", ["run.<locals>.wrapper:call", "Server.serve:call"])
def test_a_console_that_starts_ends_cleanly(migrated: tuple[Program, Path], moment: str) -> None:
    _assert_stopped(_signalled(migrated[0], "SIGTERM", moment, "console", "--json"))


def test_a_demo_that_starts_ends_cleanly(migrated: tuple[Program, Path]) -> None:
    _assert_stopped(_signalled(migrated[0], "SIGTERM", "_demo_tenant:call", "demo", "--json"))


@pytest.mark.parametrize("moment", ["_start:return", "EmbeddedPostgres.__exit__:call"])
def test_a_command_leaves_no_database_behind(migrated: tuple[Program, Path], moment: str) -> None:
    outcome = _signalled(migrated[0], "SIGTERM", moment, "organization", "list")
    assert outcome.code == 143, outcome
