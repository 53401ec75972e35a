"""Tests who may see and change data in the console. They use no browser, to send requests that browsers
do not send."""

import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.activity_records import UnsteadyDatabase
from tests.support.certificates import make_certificate
from tests.support.changed_services import changed
from tests.support.console_site import TOKEN, ConsoleSite, serving_console
from tests.support.http_client import http_client
from tests.support.tables import each
from tollkeeper.console.app import ROUTES
from tollkeeper.console.guard import BODY_BYTES_MAX
from tollkeeper.console.sessions import COOKIE
from tollkeeper.console.start import allowed_hosts, require_safe_address
from tollkeeper.console.stored_sessions import IDLE_S, SESSION_S, ConsoleSessions
from tollkeeper.core.errors import StateConflict
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.setup.settings import Settings
from tollkeeper.tenants.people import Person, Role

_FORM_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]+)"')


@pytest.fixture
async def address(site: ConsoleSite) -> AsyncIterator[str]:
    """Starts a separate console for each test, because a console counts attempts to sign in."""
    async with serving_console(site.settings, site.services) as running:
        yield running


@pytest.fixture
async def stranger(address: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(address) as client:
        yield client


@pytest.fixture
async def operator(stranger: httpx2.AsyncClient) -> httpx2.AsyncClient:
    answer = await stranger.post("/sign-in", data={"token": TOKEN})
    assert answer.status_code == 303
    return stranger


async def _form_token(operator: httpx2.AsyncClient) -> str:
    found = _FORM_TOKEN.search((await operator.get("/organizations")).text)
    assert found is not None
    return found[1]


async def _organizations(site: ConsoleSite) -> set[str]:
    return {one.name for one in await site.services.organizations.organization_list()}


_PLACES = {
    *("organization", "project", "key", "policy", "reservation", "request_id"),
    *("backend", "month"),
}


def _paths(method: str) -> list[str]:
    filled = []
    for route in ROUTES:
        if method in (route.methods or ()) and not route.path.startswith(
            ("/sign-in", "/static", "/webhooks", "/healthz")
        ):
            path = re.sub(
                r"\{(\w+)\}",
                lambda found: "x" if found[1] in _PLACES else "archive",
                route.path,
            )
            filled.append(path)
    return filled


@each("path", _paths("GET"))
async def test_a_stranger_sees_only_the_way_in(stranger: httpx2.AsyncClient, path: str) -> None:
    answer = await stranger.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/sign-in?next={path}"


@each("path", _paths("POST"))
async def test_a_stranger_changes_nothing(stranger: httpx2.AsyncClient, path: str) -> None:
    answer = await stranger.post(path, data={"name": "x"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/sign-in?next=/"


@each("path", [path for path in _paths("POST") if path != "/sign-out"])
async def test_every_form_needs_the_token_of_its_session(
    operator: httpx2.AsyncClient, site: ConsoleSite, path: str
) -> None:
    tenant = site.judged.scripted.tenant
    [key] = await site.services.project_keys.project_key_list(tenant.project_id)
    policy = await site.judged.draft()
    ids = {
        "organizations": tenant.organization_id,
        "projects": tenant.project_id,
        "keys": key.id,
        "policies": policy.id,
        "unsettled": key.id,
        "backends": "scripted",
        "months": "2026-09",
        "people": "x",
    }
    first = path.split("/")[1]
    actions = {
        "organizations": "grant-credit",
        "keys": "revoke",
        "policies": "publish",
        "months": "drop",
    }
    filled = path.replace("/x", f"/{ids.get(first)}").replace(
        "archive", actions.get(first, "archive")
    )
    answer = await operator.post(filled, data={"form_token": "0" * 32, "once": "1", "name": "x"})
    assert answer.status_code == 403, answer.text
    assert "not from a page of this session" in answer.text
    project = await site.services.projects.project_show(tenant.project_id)
    assert project.archived_at is None


async def test_a_form_from_another_site_is_refused(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    data = {"form_token": await _form_token(operator), "once": "1", "name": "Evil"}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        answer = await operator.post("/organizations", data=data, headers=headers)
        assert answer.status_code == 403
    assert "Evil" not in await _organizations(site)
    answer = await operator.post("/organizations", data=data)
    assert answer.status_code == 303
    assert "Evil" in await _organizations(site)


async def test_a_form_counts_once(operator: httpx2.AsyncClient, site: ConsoleSite) -> None:
    tenant = site.judged.scripted.tenant
    data = {
        "form_token": await _form_token(operator),
        "once": "abc",
        "amount": "1",
        "confirmed": "yes",
    }
    path = f"/organizations/{tenant.organization_id}/grant-credit"
    assert (await operator.post(path, data=data)).status_code == 303
    again = await operator.post(path, data=data)
    assert again.status_code == 409
    assert "was sent before" in again.text
    balance = await site.services.accounts.credit_show(tenant.organization_id)
    assert balance.granted_picousd == 10**13 + 10**12


@each("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
async def test_other_names_are_refused(operator: httpx2.AsyncClient, host: str) -> None:
    """Checks the protection against DNS rebinding: a site whose name resolves to the console reads nothing."""
    answer = await operator.get("/", headers={"Host": host})
    assert answer.status_code == 421


async def test_the_cookie_is_for_this_site_and_not_for_scripts(
    stranger: httpx2.AsyncClient,
) -> None:
    answer = await stranger.post("/sign-in", data={"token": TOKEN, "next": "/keys?project=x"})
    assert answer.headers["location"] == "/keys?project=x"
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith(COOKIE)
    for part in ("httponly", "samesite=strict", "path=/", "max-age=28800"):
        assert part in cookie


@pytest.mark.parametrize(
    "there", ["//evil.example", "https://evil.example", "/\\evil.example", "x"]
)
async def test_signing_in_leads_nowhere_else(stranger: httpx2.AsyncClient, there: str) -> None:
    answer = await stranger.post("/sign-in", data={"token": TOKEN, "next": there})
    assert answer.headers["location"] == "/"


async def test_a_changed_cookie_is_none(stranger: httpx2.AsyncClient) -> None:
    answer = await stranger.post("/sign-in", data={"token": TOKEN})
    value = answer.cookies[COOKIE].strip('"')
    stranger.cookies.clear()
    flipped = ("A" if value[40] != "A" else "B").join((value[:40], value[41:]))
    for cookie, status in ((value, 200), (flipped, 303), ("", 303), ("!", 303)):
        headers = {"Cookie": f"{COOKIE}={cookie}"}
        assert (await stranger.get("/models", headers=headers)).status_code == status, cookie


async def test_signing_out_ends_the_session(operator: httpx2.AsyncClient) -> None:
    cookie = operator.cookies[COOKIE]
    answer = await operator.post(
        "/sign-out", data={"form_token": await _form_token(operator), "once": "1"}
    )
    assert answer.headers["location"] == "/sign-in?notice=signed-out"
    operator.cookies.clear()
    kept = await operator.get("/models", headers={"Cookie": f"{COOKIE}={cookie}"})
    assert kept.status_code == 303


async def test_a_sign_out_holds_for_every_console_of_the_database(
    operator: httpx2.AsyncClient, site: ConsoleSite
) -> None:
    cookie = {"Cookie": f"{COOKIE}={operator.cookies[COOKIE]}"}
    async with (
        serving_console(site.settings, site.services) as address,
        http_client(address) as elsewhere,
    ):
        assert (await elsewhere.get("/models", headers=cookie)).status_code == 200
        form = {"form_token": await _form_token(operator), "once": "1"}
        assert (await operator.post("/sign-out", data=form)).status_code == 303
        assert (await elsewhere.get("/models", headers=cookie)).status_code == 303


async def test_expired_sessions_are_deleted_and_a_person_has_few(site: ConsoleSite) -> None:
    late, credential = 0, os.urandom(32)
    stored = ConsoleSessions(site.services.database, lambda: unix_now() + late)

    async def begin(person: Person) -> bytes:
        digest = os.urandom(32)
        await stored.console_session_begin(digest, credential, person, replaces=None)
        return digest

    async def lives(digest: bytes) -> bool:
        return await stored.console_session_find(digest, used=False) is not None

    ada, bob = Person("ada", "Ada", Role.OPERATOR), Person("bob", "Bob", Role.VIEWER)
    of_bob, of_ada = await begin(bob), [await begin(ada) for _ in range(33)]
    living = [await lives(one) for one in of_ada]
    assert (sum(living), living[-1]) == (32, True)
    # A sign-in with another role ends the person's sessions with the old role.
    demoted = await begin(replace(ada, role=Role.VIEWER))
    assert [await lives(one) for one in (of_ada[-1], demoted, of_bob)] == [False, True, True]
    await stored.console_session_end_all(credential, "ada")
    assert [await lives(one) for one in (demoted, of_bob)] == [False, True]
    late = IDLE_S + 1
    assert not await lives(of_bob)
    found = await stored.console_session_list(limit=1000)
    assert of_bob not in [one.digest for one in found]


async def test_without_the_database_nobody_is_signed_in(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    """Without the database, the console cannot know whether a session was ended."""
    cookie = {"Cookie": f"{COOKIE}={operator.cookies[COOKIE]}"}
    database = UnsteadyDatabase(site.services.database)
    database.away = True
    async with (
        serving_console(site.settings, changed(site.services, database=database)) as address,
        http_client(address) as client,
    ):
        assert (await client.get("/settings", headers=cookie)).status_code == 503
        assert (await client.get("/sign-in")).status_code == 200
        assert (await client.get("/static/console.js", headers=cookie)).status_code == 200


async def test_a_session_expires_and_a_new_token_ends_all(site: ConsoleSite) -> None:
    late = 0
    services = changed(site.services, clock=lambda: unix_now() + late)

    async def status(client: httpx2.AsyncClient, **headers: str) -> int:
        return (await client.get("/models", headers=headers)).status_code

    async with (
        serving_console(site.settings, services) as address,
        http_client(address) as client,
    ):
        await client.post("/sign-in", data={"token": TOKEN})
        # A session that is used often enough lasts for SESSION_S.
        for late in range(0, SESSION_S, IDLE_S - 60):
            assert await status(client) == 200, late
        late = SESSION_S + 5
        assert await status(client) == 303
        late = 0
        await client.post("/sign-in", data={"token": TOKEN})
        # A page that refreshes itself does not keep the session alive.
        late = IDLE_S - 60
        assert await status(client, **{"X-Refresh": "1"}) == 200
        late = IDLE_S + 60
        assert await status(client) == 303
        late = 0
        await client.post("/sign-in", data={"token": TOKEN})
        cookie = client.cookies[COOKIE]
    async with (
        serving_console(site.settings, services, "tko_another") as address,
        http_client(address) as client,
    ):
        assert await status(client, Cookie=f"{COOKIE}={cookie}") == 303


async def test_signing_in_again_ends_the_session_before_it(operator: httpx2.AsyncClient) -> None:
    before = {"Cookie": f"{COOKIE}={operator.cookies[COOKIE]}"}
    assert (await operator.post("/sign-in", data={"token": TOKEN})).status_code == 303
    assert (await operator.get("/models")).status_code == 200
    operator.cookies.clear()
    assert (await operator.get("/models", headers=before)).status_code == 303


async def test_signing_out_everywhere_ends_all_sessions_of_the_token(
    operator: httpx2.AsyncClient, address: str
) -> None:
    async with http_client(address) as elsewhere:
        await elsewhere.post("/sign-in", data={"token": TOKEN})
        assert (await elsewhere.get("/people")).text.count("Operator token") >= 2
        form = {"form_token": await _form_token(operator), "once": "1", "everywhere": "1"}
        assert (await operator.post("/sign-out", data=form)).status_code == 303
        assert (await elsewhere.get("/models")).status_code == 303


async def test_attempts_to_sign_in_are_bounded(site: ConsoleSite) -> None:
    late = 0
    services = changed(site.services, clock=lambda: unix_now() + late)
    async with (
        serving_console(site.settings, services) as address,
        http_client(address) as client,
    ):
        statuses = [
            (await client.post("/sign-in", data={"token": "wrong"})).status_code for _ in range(12)
        ]
        assert statuses == [403] * 10 + [429] * 2
        refused = await client.post("/sign-in", data={"token": "wrong"})
        assert 0 < int(refused.headers["retry-after"]) <= 300
        # An operator with the right token is not delayed by wrong guesses.
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        late = 301
        assert (await client.post("/sign-in", data={"token": "wrong"})).status_code == 403


async def test_every_answer_says_what_a_page_may_do(operator: httpx2.AsyncClient) -> None:
    for path in ("/", "/sign-in", "/static/console.js", "/no-such-page", "/costs.csv?by=nothing"):
        headers = (await operator.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
    assert (await operator.get("/")).headers["cache-control"] == "no-store"


async def test_a_large_body_is_refused(operator: httpx2.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(BODY_BYTES_MAX // 65_536 + 2):
            yield b"x" * 65_536

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    whole = await operator.post("/organizations", content=b"x" * (BODY_BYTES_MAX + 1), headers=form)
    streamed = await operator.post("/organizations", content=pieces(), headers=form)
    assert (whole.status_code, streamed.status_code) == (413, 413)


def _multipart(charset: str, **fields: str) -> dict[str, Any]:
    """Returns the body and the header of a form that claims to be encoded in `charset`."""
    parts = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    content_type = f"multipart/form-data; boundary=x; charset={charset}"
    return {"content": f"{parts}--x--\r\n".encode(), "headers": {"Content-Type": content_type}}


_OTHER_CHARSETS = ("punycode", "raw_unicode_escape", "undefined", '"PunyCode"', "utf-7", "none")


@each("charset", _OTHER_CHARSETS)
async def test_a_form_in_another_encoding_is_not_decoded(
    stranger: httpx2.AsyncClient, charset: str
) -> None:
    """Python's punycode decoder takes quadratic time: half a minute for a megabyte."""
    before = time.thread_time()
    for size in (1, 200_000):
        form = _multipart(charset, token="a" * size)
        assert (await stranger.post("/sign-in", **form)).status_code == 400
    assert time.thread_time() - before < 1


@each("charset", _OTHER_CHARSETS)
async def test_a_session_makes_no_encoding_acceptable(
    operator: httpx2.AsyncClient, charset: str
) -> None:
    of_session = {"form_token": await _form_token(operator), "once": "1", "name": "x" * 50}
    for fields, status in ((of_session, 400), (of_session | {"form_token": "0" * 32}, 403)):
        form = _multipart(charset, **fields)
        assert (await operator.post("/organizations", **form)).status_code == status


@each("charset", ["utf-8", "UTF8", '"utf-8"'])
async def test_a_form_in_utf8_may_say_so(stranger: httpx2.AsyncClient, charset: str) -> None:
    form = _multipart(charset, token=TOKEN)
    assert (await stranger.post("/sign-in", **form)).status_code == 303


async def test_secrets_of_the_settings_are_not_shown(site: ConsoleSite) -> None:
    settings = site.settings.model_copy(
        update={"secrets": site.settings.secrets.model_copy(update={"master_key": ""})}
    )
    hidden = settings.console.model_copy(update={"token_sha256": "ab" * 32})
    shown = settings.model_copy(update={"console": hidden})
    async with (
        serving_console(shown, site.services) as address,
        http_client(address) as client,
    ):
        await client.post("/sign-in", data={"token": TOKEN})
        text = (await client.get("/settings")).text
    assert "ab" * 32 not in text
    assert "(secret)" in text


def _settings(**console: Any) -> Settings:
    return Settings.model_validate({"console": console})


def test_beyond_loopback_it_needs_tls_or_a_proxy(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "127.3.3.3", "::1", "localhost"):
        require_safe_address(_settings(host=host))
    for host in ("0.0.0.0", "::", "10.0.0.5", "console.example"):
        with pytest.raises(StateConflict, match="is not loopback"):
            require_safe_address(_settings(host=host))
    require_safe_address(_settings(host="0.0.0.0", trusted_proxies=["10.0.0.1"]))
    _, certificate = make_certificate(tmp_path)
    files = [str(certificate), str(certificate.with_suffix(".key"))]
    require_safe_address(_settings(host="0.0.0.0", tls_files=files))


def test_names_by_which_it_may_be_called() -> None:
    assert allowed_hosts(_settings()) == {"127.0.0.1", "localhost", "[::1]"}
    behind_proxy = _settings(host="10.0.0.5", allowed_hosts=["Console.example"])
    assert allowed_hosts(behind_proxy) == {"10.0.0.5", "console.example"}
