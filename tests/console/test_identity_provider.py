"""Tests sign-in with a real OpenID Connect provider: the whole flow over HTTP, and in Chromium."""

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from bench.ports import free_port
from playwright.async_api import BrowserContext, expect

from tests.support.console_site import TOKEN, ConsoleSite, serving_console, watched_page
from tests.support.http_client import http_client
from tests.support.identity_provider import (
    Provider,
    console_with_provider,
    running_provider,
    with_provider,
)
from tests.support.tables import each
from tollkeeper.console.identity_provider import _scopes
from tollkeeper.console.sessions import COOKIE
from tollkeeper.console.sign_in import PENDING_COOKIE
from tollkeeper.core.runtime.clock import unix_now

pytestmark = pytest.mark.slow

# The timeout is long, because the machine may be busy.
expect.set_options(timeout=60_000)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSOLE_CLIENT_SECRET", "known to both")


@pytest.fixture(scope="module")
async def provider() -> AsyncIterator[Provider]:
    async with running_provider(free_port()) as running:
        yield running


async def _to_provider(client: httpx2.AsyncClient, wanted: str = "/models") -> str:
    answer = await client.get("/sign-in/provider", params={"next": wanted})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


async def _authorize(there: str, subject: str) -> str:
    """Signs in at the provider as `subject`. Returns the address to which the provider redirects."""
    async with http_client() as person:
        answer = await person.post(there, data={"sub": subject})
    assert answer.status_code == 302, answer.text
    return str(answer.headers["location"])


async def _sign_in(client: httpx2.AsyncClient, subject: str) -> httpx2.Response:
    return await client.get(await _authorize(await _to_provider(client), subject))


@pytest.mark.smoke
async def test_a_person_signs_in_with_a_role(site: ConsoleSite, provider: Provider) -> None:
    await provider.set_user("ada", name="Ada", groups=["others", "readers"])
    async with (
        console_with_provider(site, provider.issuer) as address,
        http_client(address) as client,
    ):
        there = await _to_provider(client)
        asked = parse_qs(urlsplit(there).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["redirect_uri"] == [f"{address}/sign-in/callback"]
        pending = client.cookies[PENDING_COOKIE]
        back = await _authorize(there, "ada")
        answer = await client.get(back)
        assert answer.status_code == 200
        assert 'content="0; url=/models"' in answer.text
        cookie = next(
            one for one in answer.headers.get_list("set-cookie") if one.startswith(COOKIE)
        )
        assert {"httponly", "samesite=strict"} <= set(re.split("; ?", cookie.lower()))
        page = await client.get("/models")
        assert "Ada<br>viewer" in page.text
        assert (await client.get("/people")).status_code == 403
        # The provider's answer is accepted only once, even if a client has copied the cookie.
        headers = {"Cookie": f"{PENDING_COOKIE}={pending}"}
        async with http_client(address, headers=headers) as thief:
            assert (await thief.get(back)).status_code == 403
            changed = back.replace("state=", "state=x")
            assert (await thief.get(changed)).status_code == 403
        async with http_client(address) as stranger:
            assert (await stranger.get(back)).status_code == 403


@pytest.mark.smoke
def test_claims_with_a_published_scope_are_requested() -> None:
    claims = ("groups", "organization")
    usual = ["openid", "profile", "email"]
    assert _scopes({}, claims) == usual
    assert _scopes({"scopes_supported": ["openid", "groups"]}, claims) == [*usual, "groups"]


_WRONG: dict[str, dict[str, Any]] = {
    "audience": {"aud": "another-console"},
    "audience with us as its party": {"aud": "another-console", "azp": "the-console"},
    "expired": {"exp": 1_000_000_000},
    "issued later": {"iat": 4_000_000_000, "exp": 4_000_000_100},
    "issuer": {"iss": "https://evil.example"},
    "nonce": {"nonce": "another"},
    "role": {"groups": ["nobody"]},
    "role of another kind": {"groups": {"admins": True}},
    "organization": {"groups": "tenants", "organization": "x"},
    "organization that there is not": {
        "groups": "tenants",
        "organization": "00000000-0000-4000-8000-000000000000",
    },
}


@each("wrong", list(_WRONG))
async def test_what_is_wrong_signs_nobody_in(
    site: ConsoleSite, provider: Provider, wrong: str
) -> None:
    await provider.set_user("eve", **{"name": "Eve", "groups": ["admins"], **_WRONG[wrong]})
    async with (
        console_with_provider(site, provider.issuer) as address,
        http_client(address) as client,
    ):
        answer = await _sign_in(client, "eve")
        assert answer.status_code == 403, answer.text
        assert COOKIE not in client.cookies
        assert (await client.get("/models")).status_code == 303


async def test_many_people_of_one_network_sign_in(site: ConsoleSite, provider: Provider) -> None:
    """Only wrong codes count, so a large office is never refused."""
    await provider.set_user("ada", groups="readers")
    async with (
        console_with_provider(site, provider.issuer) as address,
        http_client(address) as client,
    ):
        statuses = [(await _sign_in(client, "ada")).status_code for _ in range(12)]
        assert statuses == [200] * 12


async def test_a_small_difference_of_clocks_does_not_matter(
    site: ConsoleSite, provider: Provider
) -> None:
    await provider.set_user("ada", groups="daily", exp=unix_now() - 5)
    async with (
        console_with_provider(site, provider.issuer) as address,
        http_client(address) as client,
    ):
        assert (await _sign_in(client, "ada")).status_code == 200


async def test_a_role_that_was_taken_away_ends_with_the_next_sign_in(
    site: ConsoleSite, provider: Provider
) -> None:
    await provider.set_user("max", groups="admins")
    async with (
        console_with_provider(site, provider.issuer) as address,
        http_client(address) as client,
        http_client(address) as elsewhere,
    ):
        assert (await _sign_in(client, "max")).status_code == 200
        assert (await client.get("/people")).status_code == 200
        await provider.set_user("max", groups="readers")
        assert (await _sign_in(elsewhere, "max")).status_code == 200
        assert (await client.get("/people")).status_code == 303
        await provider.set_user("max", groups=[])
        async with http_client(address) as third:
            assert (await _sign_in(third, "max")).status_code == 403
        assert (await elsewhere.get("/models")).status_code == 303


async def test_people_of_an_organization_come_to_their_page(
    site: ConsoleSite, provider: Provider
) -> None:
    own = site.judged.scripted.tenant.organization_id
    await provider.set_user(
        "olga", groups="x", nested={"of": {"roles": ["tenants"]}}, organization=str(own)
    )
    claims: dict[str, Any] = {"role_claim": "nested.of.roles"}
    async with (
        console_with_provider(site, provider.issuer, **claims) as address,
        http_client(address) as client,
    ):
        assert (await _sign_in(client, "olga")).status_code == 200
        assert (await client.get("/")).headers["location"] == f"/organizations/{own}"


async def test_a_provider_with_new_keys_and_one_that_is_down(site: ConsoleSite) -> None:
    port = free_port()
    async with (
        console_with_provider(site, f"http://localhost:{port}") as address,
        http_client(address) as client,
    ):
        for _ in range(2):
            async with running_provider(port) as provider:
                await provider.set_user("ada", groups="readers")
                assert (await _sign_in(client, "ada")).status_code == 200
        back = (await _to_provider(client)).replace("authorize", "none")
        state = parse_qs(urlsplit(back).query)["state"][0]
        down = await client.get("/sign-in/callback", params={"state": state, "code": "x"})
        assert down.status_code == 503
        assert "identity provider does not answer" in down.text
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303


async def test_another_issuer_than_the_settings_say_is_not_used(
    site: ConsoleSite, provider: Provider
) -> None:
    async with (
        console_with_provider(site, f"http://127.0.0.1:{provider.port}/") as address,
        http_client(address) as client,
    ):
        answer = await client.get("/sign-in/provider")
        assert answer.status_code == 503
        assert "Sign in with your account" in answer.text


async def test_sign_in_sign_out_and_restart_in_a_browser(
    site: ConsoleSite, provider: Provider, context: BrowserContext
) -> None:
    await provider.set_user("vera", name="Vera Viewer", groups=["readers"])
    port = free_port()
    settings = with_provider(site.settings, provider.issuer)
    watched = await watched_page(context)
    page = watched.page
    async with serving_console(settings, site.services, port=port) as address:
        await page.goto(f"{address}/audit")
        await page.get_by_role("link", name="Sign in with your account").click()
        await page.locator('input[name="sub"]').fill("vera")
        await page.get_by_role("button", name="Authorize").click()
        await expect(page.get_by_role("heading", name="Audit")).to_be_visible()
        # The provider's own page loads files that may be unreachable from this machine.
        watched.faults.clear()
        await expect(page.locator("nav.links .who")).to_contain_text("Vera Viewer")
    # The session continues after a restart.
    async with serving_console(settings, site.services, port=port) as address:
        await page.goto(f"{address}/organizations")
        await expect(page.get_by_role("heading", name="Organizations")).to_be_visible()
        await expect(page.get_by_role("button", name="Create organization")).to_have_count(0)
        cookies = await context.cookies()
        await page.get_by_role("button", name="Sign out", exact=True).first.click()
        await expect(page.get_by_text("You are signed out.")).to_be_visible()
    # The session stays ended after another restart, even if a client has copied the cookie.
    async with serving_console(settings, site.services, port=port) as address:
        await context.add_cookies(cookies)  # type: ignore[arg-type]
        await page.goto(f"{address}/models")
        await expect(page.get_by_role("link", name="Sign in with your account")).to_be_visible()
    # The browser may ask for a page's icon after the console has stopped.
    refused = "net::ERR_CONNECTION_REFUSED"
    assert set(watched.faults) <= {
        f"not loaded: {address}/static/icon.svg: {refused}",
        f"error: Failed to load resource: {refused}",
    }
