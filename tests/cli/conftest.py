"""The program over the suite's shared database, and over databases of its own."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.program import Program, write_config
from tests.data_folders import data_folder


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every command is a process: where Python may not keep what it compiles, give it a place."""
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    folder = tmp_path_factory.mktemp("compiled")
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder)}


@pytest.fixture(scope="session")
def cold_program(
    tmp_path_factory: pytest.TempPathFactory,
    data_dir: Path,
    conninfo: str,
    compiled: dict[str, str],
) -> Program:
    """Over the shared database, which runs all the time: a command neither starts nor stops it."""
    assert conninfo
    config = write_config(tmp_path_factory.mktemp("settings"), data_dir)
    return Program(config, tmp_path_factory.mktemp("elsewhere"), compiled)


@pytest.fixture(scope="session")
def program(cold_program: Program) -> Program:
    return replace(cold_program, warm=True)


@pytest.fixture(scope="module")
def installation(compiled: dict[str, str]) -> Iterator[Callable[[], tuple[Program, Path]]]:
    """Makes programs with an empty data folder of their own, each beside its settings file."""
    with contextlib.ExitStack() as folders:

        def make() -> tuple[Program, Path]:
            folder = folders.enter_context(data_folder())
            (folder / "elsewhere").mkdir()
            config = write_config(folder, Path("data"))
            # What a killed gateway leaves behind goes with the folder.
            environment = {**compiled, "TMPDIR": str(folder)}
            return Program(config, folder / "elsewhere", environment), folder / "data"

        yield make


@pytest.fixture(scope="session")
def organization(program: Program) -> str:
    return str(program.json("organization", "create", "Acme")["id"])


@pytest.fixture(scope="session")
def project(program: Program, organization: str) -> str:
    return str(program.json("project", "create", organization, "Web")["id"])
