"""Tests that the replacement for Prisma's query engine executes the requests of LiteLLM's database client."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from bench.billing.gateways.processes import running_program
from bench.peer_programs import PRISMA_PROJECT
from bench.ports import free_port

from tests.journeys.clients.environments import node_environment
from tests.support.databases import own_database

pytestmark = pytest.mark.slow

_SCHEMA = """
datasource client {
  provider = "postgresql"
  url      = env("DATABASE_URL")
}
model Thing {
  name  String @id
  spend Float  @default(0)
  notes Json   @default("{}")
}
"""
_TABLE = """
    DROP TABLE IF EXISTS "Thing";
    CREATE TABLE "Thing" (name text PRIMARY KEY, spend float8 DEFAULT 0, notes jsonb DEFAULT '{}')
"""


class Engine:
    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self._url = url
        self._http = http

    async def post(self, path: str, body: object, transaction: str | None = None) -> Any:
        headers = {} if transaction is None else {"x-transaction-id": transaction}
        answer = await self._http.post(self._url + path, json=body, headers=headers)
        return answer.json()

    async def ask(self, query: str, transaction: str | None = None) -> Any:
        return await self.post("/", {"query": query, "variables": {}}, transaction)


@pytest.fixture
async def engine(shared_conninfo: str, tmp_path: Path) -> AsyncIterator[Engine]:
    conninfo = own_database(shared_conninfo, "prisma_engine")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_TABLE)
    parts = psycopg.conninfo.conninfo_to_dict(conninfo)
    (tmp_path / "schema.prisma").write_text(_SCHEMA)
    node = node_environment(PRISMA_PROJECT, "prisma")
    port = free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "BILLING_PRISMA_PROJECT": str(node.project),
        "PRISMA_DML_PATH": str(tmp_path / "schema.prisma"),
        "DATABASE_URL": f"postgresql://{parts['user']}@localhost/{parts['dbname']}?host={parts['host']}",
    }
    url = f"http://127.0.0.1:{port}"
    command: list[str | Path] = [node.program, PRISMA_PROJECT / "engine.cjs", "-p", str(port)]
    async with (
        running_program(command, tmp_path, environment, f"{url}/status"),
        httpx2.AsyncClient(timeout=60) as http,
    ):
        yield Engine(url, http)


_CREATE = (
    'mutation { result: createOneThing(data: {name: "a", notes: "{\\"k\\": [1]}"}) { name notes } }'
)
_ADD = 'mutation { result: updateManyThing(where: {name: "a"}, data: {spend: {increment: 0.5}}) { count } }'
_FIND = 'query { result: findUniqueThing(where: {name: "a"}) { name spend notes } }'


async def test_the_engine_does_what_a_client_asks_in_graphql(engine: Engine) -> None:
    created = await engine.ask(_CREATE)
    assert json.loads(created["data"]["result"]["notes"]) == {"k": [1]}
    again = await engine.ask(_CREATE)
    assert again["errors"][0]["user_facing_error"]["error_code"] == "P2002"
    batch = {"batch": [{"query": _ADD, "variables": {}}] * 2, "transaction": True}
    counts = await engine.post("/", batch)
    assert counts == {"batchResult": [{"data": {"result": {"count": 1}}}] * 2}
    # A transaction that is rolled back changes nothing.
    started = await engine.post("/transaction/start", {"timeout": 60_000, "max_wait": 60_000})
    await engine.ask(_ADD, started["id"])
    await engine.post(f"/transaction/{started['id']}/rollback", {})
    found = await engine.ask(_FIND)
    assert found["data"]["result"]["spend"] == 1.0
    raw = await engine.ask(
        'mutation { result: queryRaw(query: "SELECT notes, spend FROM \\"Thing\\" WHERE name = $1",'
        ' parameters: "[\\"a\\"]") }'
    )
    assert raw["data"]["result"] == {
        "columns": ["notes", "spend"],
        "types": ["json", "double"],
        "rows": [[{"k": [1]}, 1]],
    }
