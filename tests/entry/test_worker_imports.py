"""Tests that a worker imports no module that only commands, pages or the supervisor need."""

from pathlib import Path

import httpx2
import pytest

from tests.support.program import Program, serving

pytestmark = pytest.mark.slow

# The source of sitecustomize.py, which Python imports at its start. It stores a worker's modules.
_NOTES_MODULES = """
import atexit, os, sys
if "tollkeeper.entry.worker" in sys.orig_argv:
    def note():
        with open(os.environ["TEST_MODULES"], "w") as file:
            file.write("\\n".join(name for name, module in sys.modules.items() if module is not None))
    atexit.register(note)
"""
_NOT_IN_A_WORKER = (
    # Libraries, for example for colored output, commands, pages, tracing (which is disabled here)
    # and calls to providers.
    *("rich", "pygments", "typer", "click", "jinja2", "starlette", "uvicorn", "plotly"),
    *(
        "opentelemetry",
        "openai",
        "anthropic",
        "botocore",
        "google",
        "azure",
        "msal",
        "httpx",
        "httpx2",
        "requests",
        "aiohttp",
    ),
    *("alembic", "sqlalchemy", "fastapi", "multiprocessing", "unittest", "yaml"),
    # Our own modules.
    *("tollkeeper.entry.commands", "tollkeeper.console", "tollkeeper.entry.supervisor"),
    *("tollkeeper.entry.operator_listener", "tollkeeper.faces.openapi"),
    "tollkeeper.database.migrations",
)


@pytest.fixture
def modules(cold_program: Program, tmp_path: Path) -> list[str]:
    """Returns the modules of a worker that has answered a request and has ended."""
    (tmp_path / "sitecustomize.py").write_text(_NOTES_MODULES)
    noted = tmp_path / "modules"
    program = cold_program.with_environment(PYTHONPATH=str(tmp_path), TEST_MODULES=str(noted))
    with serving(program, "--port", "0", "--workers", "1") as gateway:
        refused = httpx2.post(f"{gateway.public}/v1/chat/completions", json={}, timeout=20)
        assert refused.status_code == 401
    return noted.read_text().splitlines()


def test_a_worker_imports_only_what_it_needs(modules: list[str]) -> None:
    assert "tollkeeper.calls.inference" in modules
    unwanted = [
        name
        for name in modules
        if any(name == one or name.startswith(f"{one}.") for one in _NOT_IN_A_WORKER)
    ]
    assert unwanted == []
