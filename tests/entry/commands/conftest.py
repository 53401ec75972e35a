"""Provides programs with new or shared databases, and an organization that the program created."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.data_folders import data_folder
from tests.support.databases import data_dir_beside, database_url
from tests.support.program import Program, write_config


@pytest.fixture(scope="module")
def installation(compiled: dict[str, str]) -> Iterator[Callable[[], tuple[Program, Path]]]:
    """Returns a function that creates a program with its own empty data folder and settings file. The
    function returns the program and the folder."""
    with contextlib.ExitStack() as folders:

        def make() -> tuple[Program, Path]:
            folder = folders.enter_context(data_folder())
            (folder / "elsewhere").mkdir()
            config = write_config(folder, Path("data"))
            # Temporary files of a killed gateway are deleted together with the folder.
            environment = {**compiled, "TMPDIR": str(folder)}
            return Program(config, folder / "elsewhere", environment), folder / "data"

        yield make


@pytest.fixture(scope="session")
def organization(program: Program) -> str:
    return str(program.json("organization", "create", f"Acme {uuid4().hex}")["id"])


@pytest.fixture(scope="session")
def project(program: Program, organization: str) -> str:
    return str(program.json("project", "create", organization, "Web")["id"])


@pytest.fixture(scope="session")
def operator(
    program: Program, books_conninfo: str, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Program:
    """Returns the program with the settings of the `books_conninfo` database."""
    url, data_dir = database_url(books_conninfo), data_dir_beside(data_dir, books_conninfo)
    return program.with_config(write_config(tmp_path_factory.mktemp("books"), data_dir, url=url))
