"""Tests `tollkeeper console` as a process: it creates tokens, refuses unsafe addresses, serves and stops."""

import hashlib
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest

from tests.support.program import Program, running_console
from tests.support.tables import each
from tollkeeper.database.revisions import code_revision
from tollkeeper.entry.commands.console import console_address
from tollkeeper.setup.settings.schema import ConsoleSettings, Settings


def _sign_in(address: str, token: str) -> httpx2.Response:
    with httpx2.Client(base_url=address, timeout=60) as client:
        answer = client.post("/sign-in", data={"token": token})
        return client.get("/models") if answer.status_code == 303 else answer


def test_a_new_token_and_its_digest(program: Program) -> None:
    made = program.json("console", "--new-token")
    assert made["value"].startswith("tko_")
    assert made["token_sha256"] == hashlib.sha256(made["value"].encode()).hexdigest()
    assert program.json("console", "--new-token")["value"] != made["value"]


def test_it_serves_with_a_token_of_its_own_and_stops(cold_program: Program) -> None:
    with running_console(cold_program) as (process, said):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", said["console"])
        page = _sign_in(said["console"], said["operator_token"])
        assert page.status_code == 200
        assert "Models" in page.text
        assert _sign_in(said["console"], "tko_wrong").status_code == 403
        process.terminate()
        assert process.wait(60) in (0, -15, 143)


@each(
    ("tls_files", "trusted_proxies", "scheme"),
    [
        ((), (), "http"),
        (("c.pem", "k.pem"), (), "https"),
        ((), ("10.0.0.1",), "http"),
        (("c.pem", "k.pem"), ("10.0.0.1",), "https"),
    ],
)
def test_the_address_has_the_scheme_of_the_listener(
    tls_files: tuple[str, ...], trusted_proxies: tuple[str, ...], scheme: str
) -> None:
    console = ConsoleSettings.model_construct(tls_files=tls_files, trusted_proxies=trusted_proxies)
    settings = Settings.model_construct(console=console)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert console_address(settings, listener) == f"{scheme}://127.0.0.1:{port}"


@pytest.mark.slow
def test_it_holds_a_lease_while_it_runs(cold_program: Program, shared_conninfo: str) -> None:
    """`migrate` finds running consoles by their leases."""
    with running_console(cold_program) as (process, said):
        assert _sign_in(said["console"], said["operator_token"]).status_code == 200
        _until_leases_are(shared_conninfo, process.pid, [("console", code_revision())])
        process.terminate()
        process.wait(60)
    _until_leases_are(shared_conninfo, process.pid, [])


def _until_leases_are(conninfo: str, pid: int, wanted: list[tuple[str, str]]) -> None:
    until = time.monotonic() + (20 if wanted else 0)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        while True:
            found = connection.execute(
                "SELECT kind, code_revision FROM processes WHERE pid = %s", (pid,)
            ).fetchall()
            if found == wanted:
                return
            assert time.monotonic() < until, found
            time.sleep(0.05)


@pytest.mark.slow
def test_it_takes_the_token_of_the_settings(program: Program, cold_program: Program) -> None:
    made = program.json("console", "--new-token")
    configured = cold_program.with_environment(
        TOLLKEEPER_CONSOLE__TOKEN_SHA256=made["token_sha256"]
    )
    with running_console(configured) as (_, said):
        assert said["operator_token"] is None
        assert _sign_in(said["console"], made["value"]).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_beyond_loopback_it_is_refused(program: Program, host: str) -> None:
    refusal = program.refusal("console", "--host", host)
    assert refusal.startswith(f"console.host = {host} is not loopback")
    assert "console.trusted_proxies" in refusal


@each("files", [("absent.pem", "absent.key"), ("broken.pem", "broken.pem")])
def test_a_certificate_that_cannot_be_used_is_refused(
    program: Program, tmp_path: Path, files: tuple[str, str]
) -> None:
    """The command prints neither an address nor a token before the message."""
    (tmp_path / "broken.pem").write_text("no certificate")
    paths = json.dumps([str(tmp_path / name) for name in files])
    refusal = program.with_environment(TOLLKEEPER_CONSOLE__TLS_FILES=paths).refusal("console")
    assert refusal.startswith(
        "TOLLKEEPER_CONSOLE__TLS_FILES: console.tls_files: the files cannot be used: "
    )


def test_a_client_secret_that_is_not_text_is_refused(program: Program, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"\xff\xfe")
    sign_in = {
        "issuer": "https://provider.example",
        "client_id": "console",
        "client_secret": f"file:{secret}",
        "roles": {"admins": "owner"},
    }
    configured = program.with_environment(TOLLKEEPER_CONSOLE__SIGN_IN=json.dumps(sign_in))
    outcome = configured.run("console", "--port", "0")
    assert outcome.code == 1
    assert outcome.err == (
        "tollkeeper: TOLLKEEPER_CONSOLE__SIGN_IN: console.sign_in.client_secret: "
        "the secret is not UTF-8 text\n"
    )


@pytest.mark.slow
def test_a_child_ends_with_its_parent(cold_program: Program, tmp_path: Path) -> None:
    """`tollkeeper demo` starts the console as a child process, which must end with the demo."""
    log = tmp_path / "console.log"
    with _listening() as descriptor, log.open("wb") as errors:
        child = subprocess.Popen(
            cold_program.line("console", "--child-socket", str(descriptor)),
            cwd=tmp_path,
            env=cold_program.process_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(descriptor,),
        )
        assert child.stdin is not None
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(60) in (0, -15, 143), log.read_text()


@contextmanager
def _listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        yield listener.fileno()
