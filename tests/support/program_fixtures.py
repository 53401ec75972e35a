"""Provides the program on the shared database of the test run."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.program import Program, write_config


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns variables that let processes store compiled files if the environment forbids it."""
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
    """Returns a program on the shared database, which keeps running: commands neither start nor stop it."""
    assert shared_conninfo
    config = write_config(tmp_path_factory.mktemp("settings"), data_dir)
    return Program(config, tmp_path_factory.mktemp("elsewhere"), compiled)


@pytest.fixture(scope="session")
def program(cold_program: Program) -> Program:
    return replace(cold_program, warm=True)
