"""Tests that an operator can create an organization and make its first call in the console, and that the
playground shows the call's hold and settlement."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import httpx2
import pytest
from playwright.async_api import BrowserContext, expect

from tests.console.test_confirmations import hidden_fields
from tests.support.certificates import make_certificate
from tests.support.console_site import (
    TOKEN,
    ConsoleSite,
    confirm,
    form_fields,
    make_session,
    serving_console,
    sign_in,
    watched_page,
)
from tests.support.http_client import http_client
from tests.support.ledger import run
from tests.support.paused_answer import PausedAnswer
from tests.support.scripted_gateway import COST
from tests.support.tables import each
from tests.support.upstream import chat
from tollkeeper.console.gateway_call import gateway_url
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.setup.settings import Settings
from tollkeeper.tenants.organization import ProjectKey
from tollkeeper.tenants.people import Person, Role


@pytest.fixture
async def console(site: ConsoleSite) -> AsyncIterator[str]:
    """Starts a console that knows the address of this test's gateway, and yields the console's URL."""
    address = site.judged.scripted.gateway.client.base_url
    server = site.settings.server.model_copy(update={"host": address.host, "port": address.port})
    settings = site.settings.model_copy(update={"server": server})
    async with serving_console(settings, site.services) as url:
        yield url


@pytest.fixture
async def operator(console: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(console) as client:
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        yield client


async def test_from_nothing_to_a_call_with_its_hold_and_settlement(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    sent = await form_fields(operator, "start") | {
        "organization": f"Start {site.judged.scripted.tenant.organization_id}",
        "project": "Shop",
        "amount": "3",
        "key": "server",
    }
    asked = await operator.post("/start", data=sent)
    assert "Create and grant $3.00" in asked.text
    made = await operator.post("/start", data=hidden_fields(asked.text))
    assert '<p class="notice good" role="status">$3.00 was granted.</p>' in made.text
    link = re.search(
        r"/playground\?organization=([0-9a-f-]{36})&amp;project=([0-9a-f-]{36})", made.text
    )
    assert link is not None, made.text
    organization, project = link[1], link[2]
    model = site.settings.models[0].id
    call = {"project": project, "model": model, "prompt": "Hello <b>you</b>"}
    answer = await operator.post(
        f"/playground?organization={organization}", data=await form_fields(operator, "call") | call
    )
    assert answer.status_code == 200, answer.text
    found = re.search(r'href="/activity/([0-9a-f-]{36})"', answer.text)
    assert found is not None, answer.text
    entry = (await site.services.traffic.call_story(UUID(found[1]))).entry
    assert entry.settlement == "settled"
    assert entry.cost_picousd is not None
    assert entry.hold_picousd is not None
    assert f'id="held">${usd_from_picousd(entry.hold_picousd)}<' in answer.text
    assert f'id="charged">${usd_from_picousd(entry.cost_picousd)}<' in answer.text
    said = re.search(r'id="answer" tabindex="0">(.*?)</pre>', answer.text, re.DOTALL)
    assert said is not None
    assert said[1].strip()
    assert "<b>you" not in answer.text
    # The playground has its own key, and all changes are audited as changes by the console.
    keys = await site.services.project_keys.project_key_list(entry.project_id)
    assert {key.name: key.expires_at is None for key in keys} == {
        "server": True,
        "console playground": False,
    }
    changes = (await site.services.audit.audit_list(organization_id=entry.organization_id)).entries
    assert all(change.actor.kind == "console" for change in changes)


async def _playground_keys(site: ConsoleSite) -> list[ProjectKey]:
    project_id = site.judged.scripted.tenant.project_id
    keys = await site.services.project_keys.project_key_list(project_id)
    return [key for key in keys if key.name == "console playground"]


async def test_all_calls_of_a_project_share_one_key(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    services, project_id = site.services, site.judged.scripted.tenant.project_id
    call = {"project": str(project_id), "model": site.settings.models[0].id, "prompt": "Hello"}

    async def settles(number: int) -> bool:
        sent = await form_fields(operator, f"shared {number}") | call
        return 'id="charged"' in (await operator.post("/playground", data=sent)).text

    # Even the first two calls, at the same time.
    assert all(await asyncio.gather(settles(1), settles(2)))
    [key] = await _playground_keys(site)
    assert key.permissions == ("inference:write",)
    assert key.expires_at is not None
    assert 0 < key.expires_at - services.clock() <= 1200
    # A call within the first half of the key's time changes nothing.
    assert await settles(3)
    assert await _playground_keys(site) == [replace(key, last_used_at=ANY)]
    # An expired key is used again.
    await run(
        services.database,
        "UPDATE project_keys SET expires_at = now() - interval '1 day' WHERE id = %s",
        key.id,
    )
    assert await settles(4)
    [prolonged] = await _playground_keys(site)
    assert prolonged.id == key.id
    assert prolonged.expires_at is not None
    assert prolonged.expires_at >= key.expires_at
    changes = (await services.audit.audit_list(object_id=str(key.id))).entries
    assert [one.change.operation for one in changes] == [
        "project_key_prolong",
        "project_key_create",
    ]
    assert {one.actor.kind for one in changes} == {"console"}
    # A revoked one is not.
    await services.project_keys.project_key_revoke(key.id)
    assert await settles(5)
    assert await settles(6)
    usable = {one.id: one.revoked_at is None for one in await _playground_keys(site)}
    assert usable.pop(key.id) is False
    assert list(usable.values()) == [True]


async def test_the_playground_does_not_call_as_an_archived_project(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    tenant = site.judged.scripted.tenant
    await site.services.projects.project_archive(tenant.organization_id, tenant.project_id)
    call = {"project": str(tenant.project_id), "model": site.settings.models[0].id, "prompt": "Hi"}
    refused = await operator.post("/playground", data=await form_fields(operator, "late") | call)
    assert refused.status_code == 409
    assert "The project is archived." in refused.text
    assert await _playground_keys(site) == []


async def test_a_failure_leaves_nothing_behind_and_the_form_can_be_sent_again(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    name = f"Again {site.judged.scripted.tenant.organization_id}"
    fields = {"organization": name, "project": "Shop", "amount": "3", "confirmed": "yes"}
    # The name of the key is too long, so the last of the four objects cannot be created.
    sent = await form_fields(operator, "too long") | fields | {"key": "k" * 257}
    refused = await operator.post("/start", data=sent)
    assert refused.status_code == 400
    assert "A name has 1 to 256 characters." in refused.text
    assert f'value="{name}"' in refused.text
    assert name not in [one.name for one in await site.services.organizations.organization_list()]
    sent = await form_fields(operator, "short") | fields | {"key": "server"}
    made = await operator.post("/start", data=sent)
    assert made.status_code == 200, made.text
    organizations = await site.services.organizations.organization_list()
    [organization] = [one for one in organizations if one.name == name]
    balance = await site.services.accounts.credit_show(organization.id)
    assert balance.granted_picousd == 3 * 10**12
    changes = (await site.services.audit.audit_list(organization_id=organization.id)).entries
    assert sorted(change.change.operation for change in changes) == [
        "credit_grant",
        "organization_create",
        "project_create",
        "project_key_create",
    ]


async def _text_until(texts: AsyncIterator[str], end: str) -> str:
    """Reads texts until `end` has arrived, and returns everything that was read."""
    read = ""
    async for text in texts:
        read += text
        if end in read:
            return read
    raise AssertionError(f"the page ended without {end}: {read}")


async def test_the_hold_and_the_first_piece_arrive_while_the_call_is_open(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    paused = PausedAnswer()
    site.judged.model.play(paused.verb(pieces=1), chat())
    fields = {
        "project": str(site.judged.scripted.tenant.project_id),
        "model": site.settings.models[0].id,
        "prompt": "Hello",
    }
    sent = await form_fields(operator, "paused") | fields
    async with (
        asyncio.timeout(60),
        operator.stream("POST", "/playground", data=sent) as answer,
    ):
        texts = answer.aiter_text()
        opened = await _text_until(texts, 'id="answer" tabindex="0">0 ')
        held = re.search(r'id="held">\$([0-9.]+)<', opened)
        assert held is not None, opened
        assert "Settlement" not in opened
        balance = await site.services.accounts.credit_show(
            site.judged.scripted.tenant.organization_id
        )
        assert usd_from_picousd(balance.held_picousd) == held[1]
        assert not paused.closed.is_set()
        # Another operator, or another tab, can call the same project meanwhile.
        second = await form_fields(operator, "second") | fields
        assert 'id="charged"' in (await operator.post("/playground", data=second)).text
        paused.may_end.set()
        rest = await _text_until(texts, "</html>")
    assert f'id="charged">${usd_from_picousd(COST)}<' in rest


@pytest.mark.slow
async def test_from_the_first_form_to_a_settled_call_in_a_browser(
    console: str, context: BrowserContext, site: ConsoleSite
) -> None:
    watched = await watched_page(context)
    page = watched.page
    await sign_in(page, console)
    await page.get_by_role("link", name="Get started").first.click()
    name = f"First {site.judged.scripted.tenant.organization_id}"
    await page.get_by_label("Organization").fill(name)
    await page.get_by_label("Credit in USD").fill("3")
    await page.get_by_role("button", name="Create", exact=True).click()
    await confirm(page, "Create and grant $3.00")
    await expect(page.get_by_role("heading", name="Key created")).to_be_visible()
    await expect(page.get_by_role("status")).to_have_text("$3.00 was granted.")
    await expect(page.locator("#key-value")).to_have_text(re.compile(r"\S{20,}"))
    await page.get_by_role("link", name="Make a test call here").click()
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#held")).to_have_text(re.compile(r"\$0\.\d+"))
    await expect(page.locator("#charged")).to_have_text(f"${usd_from_picousd(COST)}")
    await expect(page.locator("dt", has_text="Released from the hold")).to_be_visible()
    assert watched.faults == []


async def test_a_call_that_is_refused_says_why(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    made = await site.services.organizations.organization_create("Without credit")
    project = await site.services.projects.project_create(made.id, "Shop")
    call = {"project": str(project.id), "model": site.settings.models[0].id, "prompt": "Hello"}
    answer = await operator.post("/playground", data=await form_fields(operator, "refused") | call)
    assert "nothing was held" in answer.text
    assert "<dd>402</dd>" in answer.text


async def test_without_a_gateway_the_page_says_so(site: ConsoleSite) -> None:
    server = site.settings.server.model_copy(update={"port": 1})
    settings = site.settings.model_copy(update={"server": server})
    tenant = site.judged.scripted.tenant
    async with (
        serving_console(settings, site.services) as console,
        http_client(console) as client,
    ):
        await client.post("/sign-in", data={"token": TOKEN})
        call = {"project": str(tenant.project_id), "model": "example/chat", "prompt": "Hello"}
        answer = await client.post("/playground", data=await form_fields(client, "away") | call)
        assert "does not answer" in answer.text
        assert answer.text.rstrip().endswith("</html>")


@each(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:8080"),
        ({"server": {"host": "0.0.0.0", "port": 81}}, "http://127.0.0.1:81"),
        ({"server": {"host": "::"}}, "http://[::1]:8080"),
        ({"server": {"host": "10.0.0.11"}}, "http://10.0.0.11:8080"),
        ({"console": {"gateway_url": "https://a.example.com/"}}, "https://a.example.com"),
        ({"console": {"gateway_url": "http://a.example.com/b"}}, "http://a.example.com/b"),
    ],
)
def test_the_address_of_the_gateway(settings: dict[str, Any], url: str) -> None:
    assert gateway_url(Settings.model_validate(settings)) == url


@asynccontextmanager
async def _encrypted(gateway: httpx2.URL, context: ssl.SSLContext) -> AsyncIterator[str]:
    """Accepts TLS connections, and passes their data on to the gateway, as a proxy does. Yields the URL."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_gateway, to_gateway = await asyncio.open_connection(gateway.host, gateway.port)
        await asyncio.gather(copy(reader, to_gateway), copy(from_gateway, writer))

    async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context) as server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def _console_of(site: ConsoleSite, url: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Starts a console with this `console.gateway_url`. No gateway listens at `server.host`."""
    console = site.settings.console.model_copy(update={"gateway_url": url})
    server = site.settings.server.model_copy(update={"host": "0.0.0.0", "port": 1})
    settings = site.settings.model_copy(update={"console": console, "server": server})
    async with (
        serving_console(settings, site.services) as address,
        http_client(address) as client,
    ):
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        yield client


async def _call(client: httpx2.AsyncClient, site: ConsoleSite, once: str) -> str:
    call = {
        "project": str(site.judged.scripted.tenant.project_id),
        "model": site.settings.models[0].id,
        "prompt": "Hello",
    }
    answer = await client.post("/playground", data=await form_fields(client, once) | call)
    assert answer.text.rstrip().endswith("</html>")
    return answer.text


async def test_a_gateway_at_another_address_is_called_and_shown(
    site: ConsoleSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, certificate = make_certificate(tmp_path)
    gateway = site.judged.scripted.gateway.client.base_url
    tenant = site.judged.scripted.tenant
    async with _encrypted(gateway, context) as url, _console_of(site, url) as client:
        refused = await _call(client, site, "distrusted")
        assert f"The gateway at {url} does not answer" in refused
        assert "certificate verify failed" in refused
        # The system's certificate authorities, as OpenSSL finds them.
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert 'id="charged">$' in await _call(client, site, "trusted")
        for page in (f"/activity?organization={tenant.organization_id}&status=599", "/?until=9"):
            assert f"curl {url}/v1/chat/completions" in (await client.get(page)).text
        customer = Person("c", "Customer", Role.ORGANIZATION, tenant.organization_id)
        for cookies in (dict(client.cookies), await make_session(site, customer)):
            client.cookies = httpx2.Cookies(cookies)
            keys = await client.get(f"/keys?organization={tenant.organization_id}")
            token = re.search(r'name="form_token" value="([0-9a-f]+)"', keys.text)
            assert token is not None, keys.text
            fields = {"form_token": token[1], "once": f"key {token[1]}", "name": token[1]}
            made = await client.post("/keys", data=fields | {"project": str(tenant.project_id)})
            assert f"curl -N {url}/v1/chat/completions" in made.text, made.text
            assert f"base_url=&#34;{url}/v1&#34;" in made.text


async def test_an_answer_that_is_not_from_the_gateway_is_reported(site: ConsoleSite) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with _console_of(site, url) as client:
            said = await _call(client, site, "elsewhere")
    assert f"The server at {url} is not a gateway" in said
    assert "the status 502" in said
