"""Tests the program as root, with a data folder that the account of its database cannot enter."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.data_folders import cluster_of, remove_outside_clusters
from tests.support.program import Program, postgres_runs, serving, write_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL under another account"),
]


@pytest.fixture
def closed() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tk-closed-") as name:
        yield Path(name)
        remove_outside_clusters(Path(name))


def test_the_log_of_a_gateway_says_where_its_database_is(
    closed: Path, compiled: dict[str, str]
) -> None:
    program = Program(write_config(closed, Path("data")), closed, compiled)
    # `json` checks that the command writes one document and nothing else.
    program.json("migrate")
    data_dir = closed / "data"
    cluster = cluster_of(data_dir)
    assert not cluster.is_relative_to(closed)
    with serving(program) as gateway:
        assert postgres_runs(data_dir)
        lines = [json.loads(line) for line in gateway.log.read_text().splitlines()]
    assert [line["data_dir"] for line in lines if line.get("cluster") == str(cluster)] == [
        str(data_dir)
    ]
    assert not postgres_runs(data_dir)
    assert closed.stat().st_mode & 0o777 == 0o700
