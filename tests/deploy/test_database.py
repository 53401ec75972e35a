"""Tests that the role and the database of docs/guides/deploy.md are sufficient for the gateway."""

import re
import shlex
from pathlib import Path

import psycopg

from tests.support.data_folders import data_folder
from tests.support.postgres_server import PostgresServer
from tollkeeper.database.migrations import migrate
from tollkeeper.database.schema import check_database

_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "deploy.md"


def test_the_role_that_owns_the_database_is_enough() -> None:
    with data_folder() as folder:
        server = PostgresServer(folder / "postgres")
        server.initialise()
        server.start()
        try:
            for line in re.findall(r"^create\w+ .*$", _GUIDE.read_text(), re.MULTILINE):
                # --pwprompt needs a terminal, and this server asks for no passwords.
                program, *arguments = shlex.split(line.replace(" --pwprompt", ""))
                place = ("-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres")
                server.run(program, *place, *arguments)
            url = f"postgresql://tollkeeper@{server.address}/tollkeeper"
            migrate(url)
            check_database(url)
            with psycopg.connect(url) as connection:
                rights = connection.execute(
                    "SELECT rolsuper OR rolcreatedb OR rolcreaterole FROM pg_roles"
                    " WHERE rolname = current_user"
                ).fetchone()
            assert rights == (False,)
        finally:
            server.stop("immediate")
