"""Tests the checks before every command: wrong settings and databases are refused with one line."""

import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.support.program import Program, write_config
from tollkeeper.database.revisions import code_revision, serving_revision


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nport = 70000", ("server.port", "70000", "65535")),
        ("[server]\nworkers = 'two'", ("server.workers", "'two'", "integer")),
        ("[sever]", ("sever",)),
        (
            "[database]\nurl = 'mysql://x'",
            ("database.url", "mysql://x", "postgresql://"),
        ),
        ("[database", ("tollkeeper.toml", "is not TOML")),
    ],
    ids=["range", "type", "name", "url", "syntax"],
)
def test_wrong_settings_name_themselves(
    program: Program, tmp_path: Path, text: str, said: tuple[str, ...]
) -> None:
    config = tmp_path / "tollkeeper.toml"
    config.write_text(text)
    refusal = program.with_config(config).refusal("organization", "list")
    for part in said:
        assert part in refusal


def test_several_wrong_settings_are_still_one_line(program: Program) -> None:
    wrong = program.with_environment(TOLLKEEPER_SERVER__PORT="x", TOLLKEEPER_OPERATOR__PORT="y")
    refusal = wrong.refusal("organization", "list")
    assert "server.port" in refusal
    assert "operator.port" in refusal


def test_a_data_folder_that_cannot_be_made_is_named(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = write_config(tmp_path, tmp_path / "file" / "data")
    blocked = program.with_config(config)
    assert str(tmp_path / "file") in blocked.refusal("organization", "list")


def test_an_unreachable_database_is_said(program: Program, tmp_path: Path) -> None:
    config = write_config(tmp_path, tmp_path, url="postgresql://postgres@127.0.0.1:1/postgres")
    lost = program.with_config(config)
    assert lost.refusal("organization", "list").startswith("The database cannot be reached at ")


def test_the_operators_own_database_and_its_schema(
    program: Program, conninfo: str, tmp_path: Path
) -> None:
    """`database.url` names a Unix socket. The database is first empty, then migrated, then too new."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE DATABASE own")
        folder = connection.info.host
    url = f"postgresql://postgres@/own?host={folder}"
    own = program.with_config(write_config(tmp_path, tmp_path, url=url))
    needed = f"this code needs {serving_revision()}: run `tollkeeper migrate`."
    assert needed in own.refusal("organization", "list")

    assert own.json("migrate") == {"revision": code_revision()}
    assert own.json("organization", "list") == {"data": []}

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    newer = f"The database's schema is at 9999, newer than this code's {code_revision()}"
    for line in (("serve",), ("migrate",)):
        assert newer in own.refusal(*line)


def test_output_that_cannot_be_written_is_a_clear_refusal(
    cold_program: Program, organization: str
) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            cold_program.line("organization", "show", organization, "--json"),
            cwd=cold_program.folder,
            env=cold_program.process_environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "tollkeeper: The system: No space left on device.\n"
