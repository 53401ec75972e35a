"""Tests `tollkeeper serve` and `reload` with the whole program: real sockets, signals and processes."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import psutil
import pytest
from bench.ports import free_port

from tests.support.constants import constants_path
from tests.support.data_folders import cluster_of
from tests.support.program import (
    Program,
    Serving,
    eventually,
    model_entry,
    postgres_runs,
    serving,
    write_config,
)
from tollkeeper.money.verification.metrics import ReasonLabel

_MASTER_SECRET = "master.key"


@pytest.fixture(scope="module")
def own(installation: Callable[[], tuple[Program, Path]]) -> Iterator[tuple[Program, Path]]:
    program, data_dir = installation()
    program.json("migrate")
    with socket.create_server(("127.0.0.1", 0)) as backend:
        address = f"127.0.0.1:{backend.getsockname()[1]}"
        program.config.write_text(program.config.read_text().replace("127.0.0.1:9", address))
        yield program, data_dir


@pytest.fixture(scope="module")
def running(own: tuple[Program, Path]) -> Iterator[Serving]:
    # A relative folder in the environment must be the same folder for every process.
    program = own[0].with_environment(TOLLKEEPER_DATABASE__DATA_DIR="data")
    with serving(program, "--workers", "2") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def key(own: tuple[Program, Path], running: Serving) -> str:
    """Creates a key with commands while the gateway serves. Returns the value of the key."""
    assert running.process.is_running()
    program, _ = own
    organization = program.json("organization", "create", "Acme")["id"]
    project = program.json("project", "create", organization, "Web")["id"]
    return str(program.json("project-key", "create", project, "app")["value"])


def test_operators_are_answered(running: Serving) -> None:
    assert httpx2.get(f"{running.operator}/healthz").json() == {"status": "ok"}
    ready = httpx2.get(f"{running.operator}/readyz")
    assert ready.status_code == 200
    assert ready.json()["status"] == "ready"
    metrics = httpx2.get(f"{running.operator}/metrics")
    assert metrics.status_code == 200
    assert metrics.headers["content-type"].startswith("text/plain")
    absent = httpx2.get(f"{running.operator}/elsewhere")
    assert (absent.status_code, absent.json()) == (404, {"status": "not found"})


def test_what_alert_rules_watch_begins_at_zero(running: Serving) -> None:
    """Prometheus sees no increase in a counter that appears with its first event."""
    rules = (Path(__file__).parents[3] / "deploy" / "prometheus" / "alerts.yml").read_text()
    watched = set(re.findall(r"increase\((tollkeeper_\w+)", rules))
    # A request is counted as soon as there is one, and its rules need at least 20.
    watched -= {"tollkeeper_requests_total"}
    assert len(watched) > 6
    shown = httpx2.get(f"{running.operator}/metrics").text
    assert {
        name for name in watched if f"\n{name}{{" not in shown and f"\n{name} " not in shown
    } == set()
    assert (
        'tollkeeper_policy_verdicts_total{direction="response",mode="enforcing",outcome="missing"}'
        in shown
    )


def test_operators_see_the_state_of_the_books(running: Serving) -> None:
    """Each metric of the ledger appears soon after the start, and once for all workers together."""

    def shown() -> list[str]:
        text = httpx2.get(f"{running.operator}/metrics").text
        return sorted(line.rpartition(" ")[0] for line in text.splitlines() if line[:1] != "#")

    eventually(lambda: "tollkeeper_oldest_hold_seconds" in shown())
    found = shown()
    for name in ("oldest_hold_seconds", "oldest_unsettled_seconds", "negative_accounts"):
        assert found.count(f"tollkeeper_{name}") == 1
    for reason in ReasonLabel:
        name = "tollkeeper_unsettled_reservations"
        assert found.count(f'{name}{{reason="{reason}"}}') == 1


def test_a_key_made_while_it_serves_works(running: Serving, key: str) -> None:
    assert running.model("example", key).status_code == 200
    assert running.model("absent", key).status_code == 404


def test_every_process_has_the_same_secret(own: tuple[Program, Path], running: Serving) -> None:
    program, data_dir = own
    assert running.process.is_running()
    assert list(program.config.parent.rglob(_MASTER_SECRET)) == [data_dir / _MASTER_SECRET]


@pytest.mark.slow
def test_a_killed_worker_is_replaced(running: Serving, key: str) -> None:
    eventually(lambda: len(running.workers()) == 2)
    before = {worker.pid for worker in running.workers()}
    victim = before.pop()
    os.kill(victim, signal.SIGKILL)
    eventually(
        lambda: len(running.workers()) == 2 and victim not in {w.pid for w in running.workers()}
    )
    eventually(lambda: _workers_ready(running) == "2 of 2 answer")
    assert all(running.model("example", key).status_code == 200 for _ in range(8))


@pytest.mark.slow
def test_a_changed_catalogue_is_taken(
    own: tuple[Program, Path], running: Serving, key: str
) -> None:
    program, _ = own
    assert running.model("example/new", key).status_code == 404
    program.config.write_text(program.config.read_text() + model_entry("new"))
    assert program.json("reload") == {"pids": [running.process.pid]}
    eventually(lambda: all(running.model("new", key).status_code == 200 for _ in range(8)))


def test_a_wrong_catalogue_is_refused_and_the_old_one_stays(
    own: tuple[Program, Path], running: Serving, key: str
) -> None:
    program, _ = own
    good = program.config.read_text()
    try:
        program.config.write_text(good + model_entry("free", price="cheap"))
        assert "'free'" in program.refusal("reload")
        _refused_by_the_gateway(running)
        # This backend was not in the settings at the start, so no worker has connections for it.
        late = '[[backends]]\nname = "late"\nkind = "openai"\nurls = ["http://127.0.0.1:9/v1"]\n'
        program.config.write_text(good + late + model_entry("later", backend="late"))
        _refused_by_the_gateway(running)
        assert all(running.model("example", key).status_code == 200 for _ in range(8))
    finally:
        program.config.write_text(good)


def _refused_by_the_gateway(running: Serving) -> None:
    said = running.log.read_text().count("the old ones stay")
    running.process.send_signal(signal.SIGHUP)
    eventually(lambda: running.log.read_text().count("the old ones stay") == said + 1)


@pytest.mark.slow
def test_it_leaves_nothing_whether_told_to_stop_or_killed(
    installation: Callable[[], tuple[Program, Path]],
) -> None:
    program, data_dir = installation()
    program.json("migrate")
    with serving(program) as gateway:
        processes = gateway.process.children(recursive=True)
        assert len(gateway.workers()) == 1
        assert postgres_runs(data_dir)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(timeout=60) == 0
        # The gateway wrote its addresses once, and nothing after them.
        assert gateway.process.stdout.read() == b""
    assert psutil.wait_procs(processes, timeout=0)[1] == []
    assert not postgres_runs(data_dir)
    assert "No gateway serves" in program.refusal("reload")

    with serving(program) as gateway:
        workers = gateway.workers()
        gateway.process.kill()
        gateway.process.wait()
        assert psutil.wait_procs(workers, timeout=30)[1] == []
    # The killed gateway could not clean up. Later commands still start and stop the database.
    assert "No gateway serves" in program.refusal("reload")
    assert program.json("organization", "list") == {"data": []}
    assert not postgres_runs(data_dir)


@pytest.mark.slow
def test_the_embedded_database_returns_with_its_folder(
    installation: Callable[[], tuple[Program, Path]],
) -> None:
    program, data_dir = installation()
    program.json("migrate")
    with serving(program) as gateway:
        pid = int((cluster_of(data_dir) / "postmaster.pid").read_text().splitlines()[0])
        # The folder is missing for a while, like an unmounted disk, and the server has died.
        elsewhere = data_dir.rename(data_dir.with_name("unmounted"))
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: "cannot be started" in gateway.log.read_text())
        elsewhere.rename(data_dir)
        eventually(
            lambda: httpx2.get(f"{gateway.operator}/readyz").json()["database"].startswith("ok")
        )


@pytest.mark.slow
def test_people_are_told_both_addresses(own: tuple[Program, Path]) -> None:
    program, _ = own
    process = subprocess.Popen(
        program.line("serve"),
        cwd=program.folder,
        env=program.process_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    assert line.count("http://127.0.0.1:") == 2


@pytest.mark.slow
def test_a_taken_port_is_said_at_once(own: tuple[Program, Path], running: Serving) -> None:
    program, _ = own
    port = running.public.rsplit(":", 1)[1]
    refusal = program.refusal("serve", "--port", port)
    assert refusal == (
        f"server = 127.0.0.1:{port} cannot be bound: Address already in use. Choose another port "
        "with server.port or TOLLKEEPER_SERVER__PORT=N; 0 chooses a free port."
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = taken.getsockname()[1]
        blocked = program.with_environment(TOLLKEEPER_OPERATOR__PORT=str(other))
        assert f"operator = 127.0.0.1:{other} cannot be bound" in blocked.refusal("serve")


def test_options_are_checked_like_settings(own: tuple[Program, Path]) -> None:
    program, _ = own
    refusal = program.refusal("serve", "--port", "65536")
    assert "server.port = '65536'" in refusal
    assert "65535" in refusal


@pytest.mark.slow
def test_a_wrong_catalogue_or_secret_stops_the_start(
    own: tuple[Program, Path], tmp_path: Path
) -> None:
    program, data_dir = own
    config = write_config(tmp_path, data_dir, more=model_entry("free", price="cheap"))
    refusal = program.with_config(config).refusal("serve")
    assert "'free'" in refusal
    nameless = program.with_environment(TOLLKEEPER_SECRETS__MASTER_KEY="env:NO_SUCH_SECRET")
    assert "NO_SUCH_SECRET" in nameless.refusal("serve")
    # Without this check, each worker would fail and be restarted again and again.
    unsigned = program.with_environment(
        TOLLKEEPER_ALERTS__WEBHOOK__URL="https://alerts.invalid/hook",
        TOLLKEEPER_ALERTS__WEBHOOK__SECRET="env:NO_SUCH_SECRET",
    )
    for command in ("serve", "demo"):
        outcome = unsigned.run(command)
        assert outcome.code == 1
        # Only the last line is compared, because the demo announces its start first.
        assert outcome.err.splitlines()[-1] == (
            "tollkeeper: TOLLKEEPER_ALERTS__WEBHOOK__SECRET: alerts.webhook.secret: "
            "$NO_SUCH_SECRET is not set"
        )


def _workers_ready(running: Serving) -> str:
    found: dict[str, str] = json.loads(httpx2.get(f"{running.operator}/readyz").content)
    return found["workers"]


def test_a_log_that_nobody_reads_stops_nothing(own: tuple[Program, Path], tmp_path: Path) -> None:
    """The pipes of the log are full from the start, like those of a log shipper that hangs. The program drops
    lines when few are waiting."""
    program = own[0].with_environment(
        PYTHONPATH=constants_path(tmp_path, {"core.runtime.output._WAITING_BYTES_MAX": 20_000})
    )
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(write_end, bytes(65536)):
            pass
    os.set_blocking(write_end, True)
    port, operator_port = free_port(), free_port()
    crowded = program.with_environment(
        TOLLKEEPER_SERVER__PORT=str(port), TOLLKEEPER_OPERATOR__PORT=str(operator_port)
    )
    process = subprocess.Popen(
        crowded.line("serve", "--json"),
        cwd=crowded.folder,
        env=crowded.process_environment(),
        stdin=subprocess.DEVNULL,
        stdout=write_end,
        stderr=write_end,
    )

    def answers(port: int, path: str) -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{port}{path}", timeout=5).is_success
        except httpx2.HTTPError:
            return False

    try:
        eventually(lambda: answers(operator_port, "/readyz"), within_s=60)
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
            for _ in range(500):
                assert client.get("/v1/absent").status_code == 404
        assert answers(operator_port, "/healthz")
        dropped = re.compile(r"^tollkeeper_dropped_log_lines_total (\d+)\.0$", re.MULTILINE)
        metrics = f"http://127.0.0.1:{operator_port}/metrics"
        eventually(lambda: 300 < int(dropped.findall(httpx2.get(metrics).text)[0]) <= 600)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(read_end)
        os.close(write_end)
