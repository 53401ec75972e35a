"""Tests the gateway and the console with the settings, environment and probes of the deployment files."""

import json
import re
import secrets
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from tests.support.program import Program, running_console, serving

_DEPLOY = Path(__file__).parents[2] / "deploy"
_WITHIN_S = 60


@pytest.fixture
def deployed(shared_conninfo: str, tmp_path: Path, compiled: dict[str, str]) -> Program:
    """Returns the program with a container's settings and environment, but with free ports."""
    parts = conninfo_to_dict(shared_conninfo)
    host, user = quote(str(parts["host"]), safe=""), quote(str(parts["user"]))
    environment = {
        **compiled,
        "TOLLKEEPER_DATABASE__URL": f"postgresql://{user}@/{parts['dbname']}?host={host}",
        "TOLLKEEPER_DATABASE__DATA_DIR": str(tmp_path / "data"),
        "TOLLKEEPER_SERVER__PORT": "0",
        "TOLLKEEPER_SERVER__STOP_DELAY_S": "0",
        "TOLLKEEPER_OPERATOR__PORT": "0",
        "MASTER_KEY": secrets.token_hex(32),
        "OPENAI_API_KEY": "nobody's",
    }
    return Program(_DEPLOY / "tollkeeper.toml", tmp_path, environment)


def _health_check(operator: str) -> list[str]:
    """Returns the image's health check, with the operator listener's address in place of the default."""
    dockerfile = (_DEPLOY / "Dockerfile").read_text()
    (command,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (.*)$", dockerfile, re.MULTILINE)
    program, *arguments = json.loads(command.replace("http://127.0.0.1:8081", operator))
    assert program == "python"
    return [sys.executable, *arguments]


def test_it_serves_and_its_probes_answer(deployed: Program) -> None:
    migrated = deployed.run("migrate")
    assert migrated.code == 0, migrated.err
    with serving(deployed) as running:
        check = _health_check(running.operator)
        subprocess.run(check, check=True, capture_output=True, timeout=_WITHIN_S)
        assert httpx2.get(f"{running.operator}/healthz").status_code == 200
        # Only the database is checked, because the provider may be unreachable from here.
        assert httpx2.get(f"{running.operator}/readyz").json()["database"] == "ok"
        refused = running.model(quote("openai/gpt-4.1-mini", safe=""), "tkp_nobody")
        assert refused.status_code == 401
    check_again = subprocess.run(check, check=False, capture_output=True, timeout=_WITHIN_S)
    assert check_again.returncode != 0


def test_the_console_answers_its_probes_and_its_proxy(deployed: Program) -> None:
    compose = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())["services"]["console"]
    declared = {
        name: value.removesuffix("${CONSOLE_TOKEN_SHA256:-}")
        for name, value in compose["environment"].items()
        if name.startswith("TOLLKEEPER_CONSOLE__")
    }
    proxy = {
        "TOLLKEEPER_CONSOLE__TRUSTED_PROXIES": '["127.0.0.1"]',
        "TOLLKEEPER_CONSOLE__PORT": "0",
    }
    program = deployed.with_environment(**{**declared, **proxy})
    assert program.run("migrate").code == 0
    with running_console(program) as (_, said):
        port = said["console"].rpartition(":")[2]
        program_name, *arguments = compose["healthcheck"]["test"][1:]
        assert program_name == "python"
        check = [argument.replace(":8082", f":{port}") for argument in arguments]
        subprocess.run([sys.executable, *check], check=True, capture_output=True, timeout=_WITHIN_S)
        named = {"Host": "console.example.com"}
        address = f"http://127.0.0.1:{port}"
        assert httpx2.get(f"{address}/healthz", headers=named).status_code == 200
        assert (
            httpx2.get(f"{address}/healthz", headers={"Host": "other.example.com"}).status_code
            == 421
        )
        forwarded = {**named, "X-Forwarded-For": "10.1.2.3", "X-Forwarded-Proto": "https"}
        page = httpx2.get(f"{address}/sign-in", headers=forwarded)
        assert page.status_code == 200
        assert "max-age" in page.headers["strict-transport-security"]
