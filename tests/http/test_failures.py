"""Tests that failures of the server reveal no details, have the error format, and do not last."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.constants import constants
from tests.support.data_folders import data_folder
from tests.support.gateway import Gateway, Tenant, assert_error, idempotency_key, running_gateway
from tests.support.tables import each
from tollkeeper.core import errors
from tollkeeper.database.migrations import migrate
from tollkeeper.entry.descriptors import http_limits
from tollkeeper.faces.app import App
from tollkeeper.faces.endpoint import AnyEndpoint, Request
from tollkeeper.faces.routes import ROUTES
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire.organization import AdminKeyList
from tollkeeper.http.envelope import ErrorStyle
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import address_of, bind
from tollkeeper.setup.app import http_conventions
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.settings import Settings

_LIST = next(route for route in ROUTES if route.operation == "admin_key_list")
_ADMIN_KEYS = "/v1/organization/admin_api_keys"


@asynccontextmanager
async def _serving_endpoint(
    gateway: Gateway, settings: Settings, endpoint: AnyEndpoint
) -> AsyncIterator[tuple[httpx2.AsyncClient, HttpServer]]:
    """Serves an application with only this endpoint and the gateway's services."""
    listener = bind("127.0.0.1", 0, setting="test")
    app = App(gateway.services, http_conventions(settings), [endpoint])
    server = HttpServer(app, http_limits())
    await server.start(listener)
    async with httpx2.AsyncClient(base_url=f"http://{address_of(listener)}") as client:
        try:
            yield client, server
        finally:
            await server.drain(0)


def _failing(fault: BaseException) -> AnyEndpoint:
    async def handle(_services: ApiServices, _request: Request[None, Any]) -> AdminKeyList:
        raise fault

    return replace(_LIST, handle=handle)


_FAULTS: list[Exception] = [
    RuntimeError("SELECT secret FROM /etc/passwd"),
    KeyError("secret"),
    ValueError("secret"),
    AssertionError("secret"),
    RecursionError("secret"),
    MemoryError("secret"),
    UnicodeDecodeError("utf-8", b"secret", 0, 1, "secret"),
    OSError(28, "No space left on device", "/secret"),
    TimeoutError("secret"),
]


@each("fault", _FAULTS, ids=lambda fault: type(fault).__name__)
async def test_unexpected_fault_leaks_nothing(
    gateway: Gateway, tenant: Tenant, settings: Settings, fault: Exception
) -> None:
    async with _serving_endpoint(gateway, settings, _failing(fault)) as (client, _):
        answer = await client.get(_ADMIN_KEYS, headers=tenant.as_admin)
    assert_error(answer, 500, "server_error")
    assert answer.json()["error"]["type"] == "api_error"
    for word in ("secret", "SELECT", type(fault).__name__, "Traceback", ".py"):
        assert word not in answer.text


# Each error of the domain with its status, type and code in the interface.
_TABLE: list[tuple[Exception, int, str, str]] = [
    (errors.InvalidRequest(), 400, "invalid_request_error", "invalid_request"),
    (errors.Unauthenticated(), 401, "authentication_error", "invalid_api_key"),
    (errors.PaymentRequired(), 402, "billing_error", "payment_required"),
    (errors.PermissionDenied(), 403, "permission_error", "permission_denied"),
    (errors.PolicyDenied(), 403, "policy_error", "policy_denied"),
    (errors.NotFound(), 404, "not_found_error", "not_found"),
    (errors.ModelNotFound(), 404, "not_found_error", "model_not_found"),
    (errors.RevisionConflict(), 409, "conflict_error", "revision_conflict"),
    (errors.StateConflict(), 409, "conflict_error", "state_conflict"),
    (errors.IdempotencyConflict(), 409, "conflict_error", "idempotency_conflict"),
    (errors.ProviderRejected(), 422, "invalid_request_error", "unprocessable"),
    (errors.RateLimited(), 429, "rate_limit_error", "rate_limit_exceeded"),
    (errors.OptionUnsupported(), 501, "api_error", "not_implemented"),
    (errors.BackendFailed(), 502, "api_error", "provider_unavailable"),
    (errors.Unavailable(), 503, "api_error", "service_unavailable"),
    (errors.DeadlineExceeded(), 504, "timeout_error", "timeout"),
]


@each(("fault", "status", "kind", "code"), _TABLE, ids=[type(row[0]).__name__ for row in _TABLE])
async def test_error_table(
    gateway: Gateway,
    tenant: Tenant,
    settings: Settings,
    fault: Exception,
    status: int,
    kind: str,
    code: str,
) -> None:
    async with _serving_endpoint(gateway, settings, _failing(fault)) as (client, _):
        answer = await client.get(_ADMIN_KEYS, headers=tenant.as_admin)
    assert_error(answer, status, code)
    assert answer.json()["error"]["type"] == kind
    pointless = answer.headers.get("x-should-retry") == "false"
    assert pointless == (status in (403, 409, 501))


async def test_failure_after_a_charge_is_not_to_be_retried(
    gateway: Gateway, tenant: Tenant, settings: Settings
) -> None:
    fault = errors.BackendFailed("cut", charged=True, retry_after_s=1000)
    async with _serving_endpoint(gateway, settings, _failing(fault)) as (client, _):
        answer = await client.get(_ADMIN_KEYS, headers=tenant.as_admin)
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["retry-after"] == "120"


async def test_messages_style_wraps_every_error(
    gateway: Gateway, tenant: Tenant, settings: Settings
) -> None:
    endpoint = replace(
        _failing(errors.NotFound("gone", param="x")), error_style=ErrorStyle.COUNTING
    )
    async with _serving_endpoint(gateway, settings, endpoint) as (client, _):
        for headers, status in ((tenant.as_admin, 404), ({}, 401)):
            answer = await client.get(_ADMIN_KEYS, headers=headers)
            assert answer.status_code == status
            body = answer.json()
            assert (set(body), body["type"]) == ({"type", "error"}, "error")
            request_id = answer.headers["x-request-id"]
            assert request_id == answer.headers["request-id"] == body["error"]["request_id"]


async def test_open_requests_end_within_the_grace(
    gateway: Gateway, tenant: Tenant, settings: Settings
) -> None:
    entered = asyncio.Event()

    async def slow(services: ApiServices, request: Request[None, Any]) -> AdminKeyList:
        entered.set()
        await asyncio.sleep(0.2)
        return await _LIST.handle(services, request)  # type: ignore[return-value]

    async with _serving_endpoint(gateway, settings, replace(_LIST, handle=slow)) as (
        client,
        server,
    ):
        asking = asyncio.create_task(client.get(_ADMIN_KEYS, headers=tenant.as_admin))
        await entered.wait()
        assert not asking.done()
        await server.drain(10)
        answer = await asking
    assert answer.status_code == 200
    assert answer.headers["connection"] == "close"


async def test_request_beyond_the_grace_is_ended_in_the_envelope(
    gateway: Gateway, tenant: Tenant, settings: Settings
) -> None:
    entered = asyncio.Event()

    async def stuck(_services: ApiServices, _request: Request[None, Any]) -> AdminKeyList:
        entered.set()
        await asyncio.sleep(3600)
        raise AssertionError

    async with _serving_endpoint(gateway, settings, replace(_LIST, handle=stuck)) as (
        client,
        server,
    ):
        asking = asyncio.create_task(client.get(_ADMIN_KEYS, headers=tenant.as_admin))
        await entered.wait()
        await server.drain(0)
        answer = await asking
    assert answer.status_code in (500, 503)
    assert answer.headers["x-request-id"] == answer.json()["error"]["request_id"]


# The tests below use a database that is not always available.


@pytest.fixture
def spare_data_dir() -> Iterator[Path]:
    with data_folder() as folder:
        yield folder


@asynccontextmanager
async def _impatient(
    settings: Settings, conninfo: str, **database: object
) -> AsyncIterator[Gateway]:
    """Runs a gateway that does not wait long for a database connection."""
    changed = settings.database.model_copy(update=database)
    with constants({"setup.services.Database": {"pool_timeout_s": 0.3}}):
        running = running_gateway(settings.model_copy(update={"database": changed}), conninfo)
        async with running as gateway:
            yield gateway


def _assert_unavailable(answer: httpx2.Response) -> None:
    assert_error(answer, 503, "service_unavailable")
    assert answer.headers["retry-after"] == "2"
    assert "x-should-retry" not in answer.headers
    for word in ("postgres", "socket", "/tmp", "psycopg"):
        assert word not in answer.text


async def _recovered(gateway: Gateway, tenant: Tenant) -> httpx2.Response:
    async with asyncio.timeout(60):
        while True:
            answer = await gateway.client.get(_ADMIN_KEYS, headers=tenant.as_admin)
            if answer.status_code != 503:
                return answer
            _assert_unavailable(answer)
            await asyncio.sleep(0.1)


async def test_database_that_goes_and_comes_back(settings: Settings, spare_data_dir: Path) -> None:
    server = EmbeddedPostgres(spare_data_dir)
    with server:
        migrate(server.conninfo)
    async with _impatient(settings, server.conninfo, data_dir=spare_data_dir) as gateway:
        nobody = {"Authorization": "Bearer tka_x"}
        refused = await gateway.client.get(_ADMIN_KEYS, headers=nobody)
        assert_error(refused, 401, "invalid_api_key")  # A malformed key needs no database.
        for _ in range(2):
            with server:
                tenant = await _first_tenant(gateway)
                assert (await _recovered(gateway, tenant)).status_code == 200
            answers = await asyncio.gather(
                *(gateway.client.get(_ADMIN_KEYS, headers=tenant.as_admin) for _ in range(12))
            )
            for answer in answers:
                _assert_unavailable(answer)


async def _first_tenant(gateway: Gateway) -> Tenant:
    """Creates a tenant as soon as the database is available. Until then, services raise Unavailable."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await gateway.make_tenant()
            except errors.Unavailable:
                await asyncio.sleep(0.1)


async def test_exhausted_pool(settings: Settings, conninfo: str, tenant: Tenant) -> None:
    async with _impatient(settings, conninfo, pool_size=2) as small:
        database = small.services.database
        async with database.autocommit(), database.autocommit():
            answers = await asyncio.gather(
                *(small.client.get(_ADMIN_KEYS, headers=tenant.as_admin) for _ in range(5))
            )
        for answer in answers:
            _assert_unavailable(answer)
        answer = await small.client.get(_ADMIN_KEYS, headers=tenant.as_admin)
        assert answer.status_code == 200


async def test_read_only_database(
    settings: Settings, conninfo: str, gateway: Gateway, tenant: Tenant
) -> None:
    """Tests a state like after a failover to a standby: reads work, and writes are unavailable."""
    async with gateway.services.database.autocommit() as connection:
        await connection.execute("CREATE ROLE reader LOGIN SUPERUSER")
        await connection.execute("ALTER ROLE reader SET default_transaction_read_only = on")
    async with running_gateway(settings, make_conninfo(conninfo, user="reader")) as replica:
        answer = await replica.client.get(_ADMIN_KEYS, headers=tenant.as_admin)
        assert answer.status_code == 200
        answer = await replica.client.post(
            "/v1/organization/policies",
            json={"name": "n", "rule": "r?"},
            headers={**tenant.as_admin, **idempotency_key()},
        )
        _assert_unavailable(answer)
    async with gateway.services.database.autocommit() as connection:
        await connection.execute("DROP ROLE reader")
