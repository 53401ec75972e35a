"""Runs a gateway in front of scripted upstreams, with tenants that have credit."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import httpx2
import psutil

from tests.support.constants import constants
from tests.support.gateway import Gateway, Tenant, running_gateway
from tests.support.http_client import http_client
from tests.support.ledger import differences
from tests.support.upstream import USAGE, Upstream, Verb, chat
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.catalog import DEFAULT_TOKEN_BOUNDS
from tollkeeper.core.estimate import estimate_tokens
from tollkeeper.core.runtime.clock import Clock, unix_now
from tollkeeper.core.views import ActivityEntry
from tollkeeper.setup.settings import Settings

MODEL = "example/chat"
PROMPT_PRICE = 200_000  # In picousd per token.
COMPLETION_PRICE = 800_000
# The cost of the scripted upstream's ordinary answer.
COST = USAGE["prompt_tokens"] * PROMPT_PRICE + USAGE["completion_tokens"] * COMPLETION_PRICE
_PATIENCE_S = 20
_POOL_SIZE = 8


def model_settings(**changes: Any) -> dict[str, Any]:
    return {
        "id": MODEL,
        "backend": "scripted",
        "upstream_model": "upstream-chat",
        "context_length": 4096,
        "max_output_length": 2048,
        "supported_sampling_parameters": ["temperature", "top_p", "seed", "stop"],
        "supported_features": ["tools", "json_mode", "structured_outputs", "logprobs"],
        "pricing": {"prompt": "0.0000002", "completion": "0.0000008"},
        **changes,
    }


def scripted_settings(data_dir: Path, *urls: str, **changes: Any) -> Settings:
    """Returns settings. `more_models` are further models; other changes apply to the section that they name."""
    backend = {"name": "scripted", "kind": "openai", "urls": urls, **changes.pop("backend", {})}
    model = model_settings(**changes.pop("model", {}))
    more = [model_settings(**further) for further in changes.pop("more_models", ())]
    # Long enough for slow machines. A test that waits for the deadline sets a shorter one.
    limits = {"inference_deadline_s": 60, **changes.pop("limits", {})}
    return Settings.model_validate(
        {
            "database": {"data_dir": data_dir, "pool_size": _POOL_SIZE},
            "backends": [backend],
            "models": [model, *more],
            "limits": limits,
            **changes,
        }
    )


@dataclass(frozen=True)
class Entry:
    """Contains one reservation and its resolution or mark."""

    # One of held, settled, released and unsettled.
    status: str
    hold: int
    # The sum of all line items, including the overage; 0 before the reservation is resolved.
    cost: int
    overage: int
    estimated: bool
    reason: str | None
    prompt_tokens_max: int
    choices: int
    output_tokens_max: int

    def at_most(self, tokens: int) -> int:
        """Returns the cost of the longest possible prompt and `tokens` output tokens."""
        return self.prompt_tokens_max * PROMPT_PRICE + tokens * COMPLETION_PRICE

    @property
    def prompt_tokens(self) -> int:
        """Returns the gateway's own count of the prompt, which is sent once and is a text without tools."""
        return self.prompt_tokens_max - DEFAULT_TOKEN_BOUNDS.template

    def delivered(self, tokens: int) -> int:
        """Returns the cost of the prompt and `tokens` output tokens by the gateway's own count."""
        return self.prompt_tokens * PROMPT_PRICE + tokens * COMPLETION_PRICE

    def delivered_pieces(self, count: int, text: str | None = None) -> int:
        """Returns the cost, by the gateway's own count, of an answer that broke off after `count` pieces.
        The default text is that of the numbered pieces of the scripted upstream."""
        if text is None:
            text = "".join(f"{number} " for number in range(count))
        return self.delivered(max(count, estimate_tokens(text)))


@dataclass(frozen=True)
class ScriptedGateway:
    gateway: Gateway
    upstream: Upstream
    tenant: Tenant
    # The tenant whose calls only show that the gateway works; they do not change other books.
    probe_tenant: Tenant
    # Returns the verb that the upstream plays in an ordinary call.
    ordinary: Callable[[], Verb] = chat
    # Organizations whose books a test has verified. If there are any, all books are verified again
    # before the gateway stops.
    verified: set[UUID] = field(default_factory=set)

    async def chat(self, **fields: Any) -> httpx2.Response:
        headers = fields.pop("headers", self.tenant.as_customer)
        return await self.gateway.client.post(
            "/v1/chat/completions", json=chat_body(**fields), headers=headers
        )

    async def send(self, content: bytes, **headers: str) -> httpx2.Response:
        """Sends these bytes as the body of a chat request."""
        return await self.gateway.client.post(
            "/v1/chat/completions",
            content=content,
            headers={
                **self.tenant.as_customer,
                "Content-Type": "application/json",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
        )

    @asynccontextmanager
    async def another_client(self) -> AsyncIterator["ScriptedGateway"]:
        """Yields the same gateway with another client, whose connections are closed at the end."""
        limits = httpx2.Limits(max_connections=None)
        async with http_client(self.gateway.base_url, limits=limits) as client:
            yield replace(self, gateway=replace(self.gateway, client=client))

    async def with_tenant(
        self, *, credit: int = 10**13, forgets_excesses: bool = True
    ) -> "ScriptedGateway":
        """Returns the same gateway for a new tenant with this credit."""
        tenant = await self.gateway.make_tenant(credit=credit, forgets_excesses=forgets_excesses)
        return replace(self, tenant=tenant)

    async def activity_of(self, answer: httpx2.Response) -> ActivityEntry:
        """Returns the activity record of an answered request."""
        services = self.gateway.services
        await services.recorder.drain()
        await services.activity.drain()
        return await services.activity.activity_show(UUID(answer.headers["x-request-id"]))

    async def balance(self) -> dict[str, int]:
        """Verifies the tenant's books after every call has ended, and returns the sums of its ledger rows."""
        organization_id = self.tenant.organization_id
        self.verified.add(organization_id)
        await self.verify_books(organization_id)
        async with self.gateway.services.database.autocommit() as connection:
            cursor = await connection.execute(_BALANCE, (self.tenant.organization_id,))
            row = await cursor.fetchone()
        assert row is not None
        return dict(
            zip(("granted", "held", "unsettled", "settled", "resolutions"), row, strict=True)
        )

    async def verify_books(self, organization_id: OrganizationId | None = None) -> None:
        """Verifies the ledger of one organization, or of all, after every call has ended."""
        services = self.gateway.services
        await services.inference.drain(5)
        await services.ledger.drain()
        only = () if organization_id is None else (organization_id,)
        assert await differences(services.database, *only, age_s=0, lease_s=3600) == []

    async def grant(self, amount: int) -> None:
        await self.gateway.services.accounts.credit_grant(
            self.tenant.organization_id, amount, "test"
        )

    async def entry(self, request_id: str) -> Entry | None:
        """Returns the reservation of one request, or None. Its id is the request's id."""
        rows = await self.sql(_ENTRY, self.tenant.organization_id, UUID(request_id))
        return Entry(*rows[0]) if rows else None

    async def entry_of(self, answer: httpx2.Response) -> Entry:
        found = await self.entry(answer.headers["x-request-id"])
        assert found is not None
        return found

    async def entries(self) -> list[Entry]:
        return [Entry(*row) for row in await self.sql(_ENTRIES, self.tenant.organization_id)]

    async def traces(self) -> tuple[int, int]:
        """Returns the number of requests that reached the upstream, and of the tenant's reservations."""
        query: LiteralString = "SELECT count(*) FROM reservations WHERE organization_id = %s"
        rows = await self.sql(query, self.tenant.organization_id)
        return len(self.upstream.requests), rows[0][0]

    async def sql(self, statement: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        async with self.gateway.services.database.autocommit() as connection:
            cursor = await connection.execute(statement, parameters)
            return [] if cursor.description is None else await cursor.fetchall()

    @asynccontextmanager
    async def leaving_nothing(self) -> AsyncIterator[None]:
        """Checks after the block that an ordinary call works, and that no task, socket or file of the
        block is left."""
        await self.works()
        before = await _steady_footprint(self.upstream)
        yield
        await eventually(lambda: self.gateway.services.inference.running == 0)
        await eventually(lambda: self.upstream.under_way == 0)
        assert self.gateway.services.ledger.open_holds == 0
        await self.works()
        try:
            await eventually(lambda: _Footprint.of(self.upstream).is_within(before))
        except TimeoutError:
            raise AssertionError(f"{before} became {_Footprint.of(self.upstream)}") from None

    async def every_connection_ends(self) -> None:
        """Waits until idle connections to the upstream have expired. A connection that was never given
        back would stay open."""
        await eventually(lambda: self.upstream.open_connections == 0)

    async def works(self) -> None:
        """Checks that an ordinary call succeeds. This also resets the backend's count of failures."""
        self.upstream.play(self.ordinary())
        answer = await self.chat(headers=self.probe_tenant.as_customer)
        assert answer.status_code == 200, answer.text


@dataclass(frozen=True)
class _Footprint:
    tasks: Counter[str]
    descriptors: int

    @classmethod
    def of(cls, upstream: Upstream) -> "_Footprint":
        """Returns the present numbers. Idle connections to the upstream, with both ends in this
        process, are not counted. Nor are Unix sockets, which lead to the database: the pools of other
        gateways in this process may grow, and a connection that is not given back is soon missed in a
        pool of eight."""
        tasks = Counter(
            getattr(task.get_coro(), "__qualname__", "?")
            for task in asyncio.all_tasks() - {asyncio.current_task()}
        )
        # One such task serves all streams, and ends some time after the last stream.
        del tasks["KeepAlive._run"]
        del tasks["StreamServer._serve"]
        process = psutil.Process()
        descriptors = process.num_fds() - len(process.net_connections("unix"))
        return cls(tasks, descriptors - 2 * upstream.open_connections)

    def is_within(self, other: "_Footprint") -> bool:
        return not self.tasks - other.tasks and self.descriptors <= other.descriptors


async def _steady_footprint(upstream: Upstream) -> _Footprint:
    """Returns the maximum of two measurements. While a connection of the previous test closes, one of its
    ends is already gone, and a single measurement would be too small."""
    first = _Footprint.of(upstream)
    await asyncio.sleep(0.02)
    second = _Footprint.of(upstream)
    return _Footprint(first.tasks | second.tasks, max(first.descriptors, second.descriptors))


_ENTRIES: LiteralString = """
    SELECT coalesce(d.kind, CASE WHEN m.reason IS NULL THEN 'held' ELSE 'unsettled' END), r.hold,
        coalesce(d.prompt + d.completion + d.input_cache_read + d.image + d.request
            + d.input_cache_write + d.input_audio + d.output_audio + d.output_image
            + d.web_search, 0),
        coalesce(o.amount, 0), coalesce(d.estimated, false), m.reason,
        r.prompt_tokens_max, r.choices, r.output_tokens_max
    FROM reservations r
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
    LEFT JOIN overages o ON o.organization_id = r.organization_id AND o.reservation_id = r.id
    LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
    WHERE r.organization_id = %s
"""
_ENTRY: LiteralString = _ENTRIES + " AND r.id = %s"
_BALANCE: LiteralString = """
    SELECT coalesce((SELECT sum(amount) FROM grants g WHERE g.organization_id = o.id), 0),
        coalesce(sum(r.hold) FILTER (WHERE d.kind IS NULL AND m.reason IS NULL), 0),
        coalesce(sum(r.hold) FILTER (WHERE d.kind IS NULL AND m.reason IS NOT NULL), 0),
        coalesce(sum(d.prompt + d.completion + d.input_cache_read + d.image + d.request
            + d.input_cache_write + d.input_audio + d.output_audio + d.output_image
            + d.web_search), 0),
        count(d.kind)
    FROM organizations o
    LEFT JOIN reservations r ON r.organization_id = o.id
    LEFT JOIN resolutions d ON d.organization_id = o.id AND d.reservation_id = r.id
    LEFT JOIN unsettled_marks m ON m.organization_id = o.id AND m.reservation_id = r.id
    WHERE o.id = %s GROUP BY o.id
"""


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], **fields}


@dataclass(frozen=True)
class Stream:
    """Contains a stream as a client reads it."""

    chunks: list[dict[str, Any]]
    # The error record that ended the stream, or None.
    error: dict[str, Any] | None
    done: bool

    @property
    def text(self) -> str:
        deltas = [choice["delta"] for chunk in self.chunks for choice in chunk["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)


def read_stream(body: str) -> Stream:
    """Parses a whole body and checks its format: only records and comments, each followed by a blank line.
    `[DONE]` or an error may end it, but not both, and nothing may follow."""
    records = body.split("\n\n")
    assert records.pop() == "", "the last record is not ended"
    said = [record for record in records if not record.startswith(":")]
    assert all(record.startswith("data: ") and "\n" not in record for record in said), said
    payloads = [record.removeprefix("data: ") for record in said]
    done = payloads[-1] == "[DONE]"
    parsed = [json.loads(payload) for payload in payloads[: -1 if done else None]]
    error = None if done or "error" not in parsed[-1] else parsed.pop()["error"]
    assert not any("error" in chunk for chunk in parsed)
    return Stream(parsed, error, done)


async def eventually(happened: Callable[[], bool], *, within_s: float = _PATIENCE_S) -> None:
    async with asyncio.timeout(within_s):
        while not happened():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


@asynccontextmanager
async def scripted_gateway(
    data_dir: Path,
    conninfo: str,
    upstream: Upstream,
    *,
    credit: int = 10**13,
    urls: tuple[str, ...] = (),
    ordinary: Callable[[], Verb] = chat,
    clock: Clock = unix_now,
    drain_s: float = 60,
    changed_constants: Mapping[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[ScriptedGateway]:
    """Runs a gateway. `urls` are the backend's replicas, by default only the upstream. `drain_s` is how long
    the gateway reads an answer after its client has disconnected."""
    changed = {"setup.calls.DRAIN_S": drain_s, **(changed_constants or {})}
    settings = scripted_settings(data_dir, *(urls or (upstream.url,)), **changes)
    async with AsyncExitStack() as stack:
        stack.enter_context(constants(changed))
        gateway = await stack.enter_async_context(running_gateway(settings, conninfo, clock=clock))
        tenant = await gateway.make_tenant(credit=credit)
        scripted = ScriptedGateway(
            gateway, upstream, tenant, probe_tenant=tenant, ordinary=ordinary
        )
        yield scripted
        if scripted.verified:
            await scripted.verify_books()


@asynccontextmanager
async def answering_gateway(
    data_dir: Path, conninfo: str, **changes: Any
) -> AsyncIterator[ScriptedGateway]:
    """Runs a gateway in front of an upstream that answers every chat request."""
    async with (
        Upstream(chat()) as upstream,
        scripted_gateway(data_dir, conninfo, upstream, **changes) as running,
    ):
        yield running
