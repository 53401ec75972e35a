"""`tollkeeper doctor`."""

import json
import socket
from pathlib import Path
from typing import Any

from tests.cli.program import Program, write_config

_JUDGE = """
[judge]
backend = "cluster"
model = "chat-small"
"""


def _findings(program: Program) -> tuple[int, dict[str, dict[str, Any]], bool]:
    outcome = program.run("doctor", "--json")
    document = json.loads(outcome.out)
    assert set(document) == {"ok", "data"}
    assert outcome.err.count("\n") == (0 if document["ok"] else 1)
    return outcome.code, {row["name"]: row for row in document["data"]}, document["ok"]


def test_everything_stands(cold_program: Program, data_dir: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = write_config(tmp_path, data_dir, more=_JUDGE)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        config.write_text(config.read_text().replace("127.0.0.1:9", address))
        code, found, ok = _findings(cold_program.with_config(config))
    assert code == 0
    assert ok
    assert list(found) == ["settings", "master secret", "database", "backend cluster", "judge"]
    assert {row["verdict"] for row in found.values()} == {"ok"}
    assert address in found["backend cluster"]["detail"]


def test_each_fault_has_its_line(cold_program: Program, tmp_path: Path) -> None:
    backends = """
[[backends]]
name = "nowhere"
kind = "openai"
urls = ["http://:80/v1"]
[[backends]]
name = "silent"
kind = "openai"
urls = ["http://name.invalid/v1"]
api_key_env = "NO_SUCH_KEY"
"""
    url = "postgresql://postgres@127.0.0.1:1/postgres"
    config = write_config(tmp_path, tmp_path, url=url, more=backends)
    config.write_text(config.read_text() + '[secrets]\nmaster_key_env = "NO_SUCH_SECRET"\n')
    faulty = cold_program.with_config(config)
    code, found, ok = _findings(faulty)
    assert code == 1
    assert not ok
    bad = {name for name, row in found.items() if row["verdict"] == "bad"}
    assert bad == {
        "master secret",
        "database",
        "backend cluster",
        "backend nowhere",
        "backend silent",
    }
    assert "NO_SUCH_SECRET" in found["master secret"]["detail"]
    assert "cannot be reached" in found["database"]["detail"]
    assert "Connection refused" in found["backend cluster"]["detail"]
    assert "names no host" in found["backend nowhere"]["detail"]
    # Nobody judges: a gap that the operator may want.
    assert found["judge"]["verdict"] == "warning"
    shown = faulty.run("doctor")
    assert "$NO_SUCH_KEY is not set" in shown.out
    assert shown.err.startswith("tollkeeper: 6 of 8 checks are bad: master secret, database")


def test_wrong_settings_are_a_finding(cold_program: Program) -> None:
    wrong = cold_program.with_environment(TOLLKEEPER_SERVER__PORT="x")
    code, found, ok = _findings(wrong)
    assert (code, ok) == (1, False)
    assert "server.port" in found["settings"]["detail"]
