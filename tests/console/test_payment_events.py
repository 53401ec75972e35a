"""Tests that each payment is granted exactly once, minus its refunds and disputes, if thousands of events are
repeated, reordered, forged and sent to two consoles at once."""

import asyncio
import json
import random
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil

from tests.support import stripe_events as stripe
from tests.support.console_site import ConsoleSite, serving_console
from tests.support.databases import data_dir_beside, database_url
from tests.support.http_client import http_client
from tests.support.ledger import rows
from tests.support.program import Program, stop, write_config
from tests.support.proof import Proof
from tollkeeper.core.access import OrganizationId
from tollkeeper.setup import running_services
from tollkeeper.setup.settings.schema import PaymentsSettings

_SENDERS = 8
# The cents that remain of a payment of ten dollars, and the events that follow the payment.
_STORIES: tuple[tuple[int, Callable[[str], list[bytes]]], ...] = (
    (1000, lambda _: []),
    (1000, lambda _: []),
    (300, lambda pay: [stripe.charge_refunded(pay, cents) for cents in (100, 400, 700)]),
    (
        600,
        lambda pay: [
            *(stripe.refund(pay, f"re_{n}{pay}", 200, "pending") for n in (1, 2, 3)),
            stripe.refund(pay, f"re_1{pay}", 200),
            stripe.refund(pay, f"re_2{pay}", 200),
            stripe.refund(pay, f"re_3{pay}", 200, "failed"),
            stripe.charge_refunded(pay, 600),
        ],
    ),
    (
        1000,
        lambda pay: [
            stripe.dispute(pay, f"dp_{pay}", 1000, status) for status in ("needs_response", "won")
        ],
    ),
    (
        0,
        lambda pay: [
            stripe.charge_refunded(pay, 500),
            *(stripe.dispute(pay, f"dp_{pay}", 1000, "needs_response"),),
            stripe.dispute(pay, f"dp_{pay}", 1000, "lost"),
        ],
    ),
)


@dataclass
class _Deliveries:
    """The requests in sending order (body, headers, expected status), and the cents left of each payment."""

    sent: list[tuple[bytes, dict[str, str], int]] = field(default_factory=list)
    cents: dict[OrganizationId, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    forged: int = 0


def _deliveries(
    count: int, organizations: list[OrganizationId], chance: random.Random
) -> _Deliveries:
    made = _Deliveries()
    while len(made.sent) < count:
        organization, payment = chance.choice(organizations), stripe.new_payment()
        left, story = chance.choice(_STORIES)
        bodies = [
            stripe.completed(payment, 1000, organization),
            stripe.succeeded(payment, 1000, chance.choice((organization, None))),
            *story(payment),
        ]
        made.cents[organization][payment] = left
        for body in bodies:
            made.sent += [(body, stripe.signed(body), 200)] * chance.choice((1, 1, 2, 3))
        # An attacker forges a payment with another secret or an old signature.
        stolen = stripe.succeeded(stripe.new_payment(), 99_999, organization)
        forgery = chance.choice(({"secret": "whsec_guessed"}, {"at": 1_700_000_000}))
        made.sent.append((stolen, stripe.signed(stolen, **forgery), 400))
        made.forged += 1
    chance.shuffle(made.sent)
    return made


async def _send(addresses: list[str], deliveries: _Deliveries) -> list[tuple[int, int]]:
    """Sends all deliveries to both consoles. Returns (expected, actual) for each unexpected status."""
    waiting = list(enumerate(deliveries.sent))[::-1]
    wrong = []

    async def send(address: str) -> None:
        async with http_client(address, timeout=120) as client:
            while waiting:
                _, (body, headers, status) = waiting.pop()
                answer = await client.post("/webhooks/stripe", content=body, headers=headers)
                if answer.status_code != status:
                    wrong.append((status, answer.status_code))

    await asyncio.gather(*(send(addresses[number % 2]) for number in range(_SENDERS)))
    return wrong


@asynccontextmanager
async def _two_consoles(
    site: ConsoleSite, conninfo: str, folder: Path, *, processes: bool
) -> AsyncIterator[list[str]]:
    """Starts two console processes, or two consoles in this process with separate database connections."""
    secret = folder / "secret"
    secret.write_text(stripe.SECRET)
    source = f"file:{secret}"
    async with AsyncExitStack() as stack:
        if processes:
            more = f"[payments]\nwebhook_secrets = {{ live = [{json.dumps(source)}] }}\n"
            url = database_url(conninfo)
            data_dir = data_dir_beside(site.settings.database.data_dir, conninfo)
            config = write_config(folder, data_dir, url=url, more=more)
            program = Program(config, folder)
            yield [await stack.enter_async_context(_process(program)) for _ in range(2)]
            return
        payments = PaymentsSettings.model_validate({"webhook_secrets": {"live": [source]}})
        settings = site.settings.model_copy(update={"payments": payments})
        second = await stack.enter_async_context(running_services(settings, conninfo))
        yield [
            await stack.enter_async_context(serving_console(settings, services))
            for services in (site.services, second)
        ]


@asynccontextmanager
async def _process(program: Program) -> AsyncIterator[str]:
    process = psutil.Popen(
        program.line("console", "--json"),
        cwd=program.folder,
        env=program.process_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield json.loads(await asyncio.to_thread(process.stdout.readline))["console"]
    finally:
        await asyncio.to_thread(stop, process)


async def test_each_payment_is_granted_exactly_once(
    site: ConsoleSite, conninfo: str, tmp_path: Path, proof: Proof
) -> None:
    database = site.services.database
    made = [
        await site.services.organizations.organization_create(f"Payer {uuid4()}") for _ in range(3)
    ]
    size = proof.size(quick=600, long=10_000, smoke=60)
    deliveries = _deliveries(size, [one.id for one in made], random.Random(size))
    async with _two_consoles(site, conninfo, tmp_path, processes=proof.long) as addresses:
        assert await _send(addresses, deliveries) == []
    for organization, expected in deliveries.cents.items():
        found = await rows(
            database,
            """
            SELECT payment_id, div(sum(amount), 10000000000), count(*) FILTER (WHERE kind = 'payment')
            FROM grants WHERE organization_id = %s GROUP BY payment_id
            """,
            organization,
        )
        assert {row[0]: (int(row[1]), row[2]) for row in found} == {
            payment: (cents, 1) for payment, cents in expected.items()
        }
        balance = await site.services.accounts.credit_show(organization)
        assert balance.available_picousd == sum(expected.values()) * 10**10
    assert await site.services.reconciliation.ledger_verify() == []
    proof.count("payment events", len(deliveries.sent))
    proof.count("forged payment events", deliveries.forged)
    proof.count("payments granted once", sum(map(len, deliveries.cents.values())))
