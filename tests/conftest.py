"""Defines fixtures that all tests share: one PostgreSQL server and one gateway for each test process."""

import gc
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from tests.support.constants import constants
from tests.support.data_folders import data_folder
from tests.support.databases import migrate_with_template
from tests.support.gateway import Gateway, Tenant, running_gateway
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.settings import Settings

pytest_plugins = [
    "tests.support.compiled_files",
    "tests.support.disturbances",
    "tests.support.documented_answers",
    "tests.support.leftovers",
    "tests.support.proof",
    "tests.support.sdks",
    "tests.support.books_fixtures",
    "tests.support.ledger_fixtures",
    "tests.support.program_fixtures",
    "tests.support.scripted_gateway_fixtures",
]

# The number of examples for each property test: by default, and with --slow or --prove.
_EXAMPLES, _EXAMPLES_SLOW = 30, 100


def pytest_configure(config: pytest.Config) -> None:
    """Makes Hypothesis use the same examples on every machine and in every run. A machine that is slow
    for a moment causes no failure."""
    is_slow = config.getoption("--slow") or config.getoption("--prove")
    hypothesis.settings.register_profile(
        "fixed",
        max_examples=_EXAMPLES_SLOW if is_slow else _EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("fixed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the tests of each folder together, in any order of the tests. So the databases and
    gateways that the tests of a folder share are started only once."""
    numbers: dict[Path, int] = {}
    places: dict[Path, list[int]] = {}
    for path in (item.path for item in items):
        if path not in places:
            above = reversed(path.parents)
            places[path] = [numbers.setdefault(folder, len(numbers)) for folder in above]
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disables garbage collection while pytest collects tests, and excludes the objects of this time
    from later collections: almost all of them stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _many_requests_for_administration() -> Iterator[None]:
    """Raises the rate limit of administration requests: a test may send more than the real limit."""
    with constants({"tenants.administration_rate.PER_MINUTE": 1_000_000}):
        yield


@pytest.fixture(autouse=True)
def _logs_by_default() -> None:
    """Resets the log settings before each test. A command that an earlier test ran in this process may
    have disabled logs, and `capture_logs` would then find nothing."""
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Path]:
    with data_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def shared_conninfo(data_dir: Path) -> Iterator[str]:
    """Starts a PostgreSQL server with a migrated database, and stops it at the end of the session."""
    with EmbeddedPostgres(data_dir) as server:
        migrate_with_template(server.conninfo)
        yield server.conninfo


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Returns the database of a test. Folders whose tests verify the whole ledger override this."""
    return shared_conninfo


@pytest.fixture(scope="session")
def settings(data_dir: Path) -> Settings:
    return make_settings(data_dir)


@pytest.fixture(scope="session")
async def gateway(settings: Settings, shared_conninfo: str) -> AsyncIterator[Gateway]:
    """Starts the gateway that all tests share. It always uses the shared database, even for folders
    that override `conninfo`."""
    async with running_gateway(settings, shared_conninfo) as running:
        yield running


@pytest.fixture
async def tenant(gateway: Gateway) -> Tenant:
    """Creates an organization with one project, and with keys that have all permissions."""
    return await gateway.make_tenant()


def make_settings(data_dir: Path) -> Settings:
    declared: dict[str, Any] = {
        "database": {"data_dir": data_dir, "pool_size": 8},
        "backends": [
            {"name": "cluster", "kind": "openai", "urls": ["http://127.0.0.1:9/v1"]},
        ],
        "models": [
            {
                "id": "example/chat-small",
                "backend": "cluster",
                "upstream_model": "chat-small",
                "owned_by": "example",
                "name": "Chat Small",
                "display_name": "Chat Small",
                "created": 1767225600,
                "context_length": 32768,
                "max_output_length": 8192,
                "quantization": "bf16",
                "supported_sampling_parameters": ["temperature", "top_p", "seed", "stop"],
                "supported_features": ["tools", "json_mode", "structured_outputs", "logprobs"],
                "pricing": {"prompt": "0.0000002", "completion": "0.0000008"},
            },
            {
                "id": "example/locked",
                "backend": "cluster",
                "upstream_model": "locked",
                "context_length": 1024,
                "max_output_length": 512,
                "required_checks": ["kyc", "terms"],
            },
        ],
    }
    return Settings(**declared)
