"""The program over the suite's shared database."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.program import Program, write_config


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
    shared_conninfo: str,
    compiled: dict[str, str],
) -> Program:
    """Over the shared database, which runs all the time: a command neither starts nor stops it."""
    assert shared_conninfo
    config = write_config(tmp_path_factory.mktemp("settings"), data_dir)
    return Program(config, tmp_path_factory.mktemp("elsewhere"), compiled)


@pytest.fixture(scope="session")
def program(cold_program: Program) -> Program:
    return replace(cold_program, warm=True)
