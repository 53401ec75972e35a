"""Tests over HTTP which pages people with each role may see and which actions they may take."""

import importlib
import pkgutil
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import httpx2
import pytest

from tests.support.console_pages import filled_paths
from tests.support.console_site import ConsoleSite, make_session, serving_console
from tests.support.gateway import Tenant
from tests.support.http_client import http_client
from tests.support.tables import each
from tollkeeper.console import pages
from tollkeeper.console.app import ROUTES
from tollkeeper.console.changes import Action
from tollkeeper.console.own_services import own_services
from tollkeeper.console.permissions import PERMISSIONS, PUBLIC, access_to
from tollkeeper.domain.access import ProjectId
from tollkeeper.domain.audit import ActorKind
from tollkeeper.domain.errors import NotFound, PermissionDenied
from tollkeeper.domain.people import Person, Role

_FORM = re.compile(r'<form[^>]*method="post"[^>]*action="([^"]*)"')
_FORM_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]+)"')
_HTTP_REFUSED = (403, 404)


def _actions() -> dict[str, set[str]]:
    """Returns the names of the actions of each page module that has a table of actions."""
    found = {}
    for module in pkgutil.iter_modules(pages.__path__):
        page = importlib.import_module(f"{pages.__name__}.{module.name}")
        actions = getattr(page, "_ACTIONS", None)
        if isinstance(actions, dict) and all(isinstance(one, Action) for one in actions.values()):
            found[page.__name__] = set(actions)
    return found


def test_every_route_and_action_has_a_least_role() -> None:
    actions, named = _actions(), set()
    for route in ROUTES:
        (method,) = set(route.methods or ()) - {"HEAD"}
        name = f"{method} {route.path}"
        if "{action}" in route.path:
            of_page = actions[route.endpoint.__module__]
            named |= {name.replace("{action}", action) for action in of_page}
        elif name not in PUBLIC:
            named.add(name)
    assert named == set(PERMISSIONS)


@asynccontextmanager
async def _signed_in(site: ConsoleSite, person: Person) -> AsyncIterator[httpx2.AsyncClient]:
    async with serving_console(site.settings, site.services) as address:
        cookies = await make_session(site, person)
        async with http_client(address, cookies=cookies) as client:
            yield client


async def _ids(site: ConsoleSite, tenant: Tenant) -> dict[str, str]:
    services = site.services
    key = (await services.project_keys.project_key_list(tenant.project_id))[0]
    admin = (
        await services.admin_keys.admin_key_list(tenant.organization_id, after=None, limit=1)
    ).keys[0]
    policies = await services.policies.policy_list(tenant.organization_id)
    return {
        "organization": str(tenant.organization_id),
        "project": str(tenant.project_id),
        "key": str(key.id),
        "admin_key": str(admin.id),
        "policy": policies[0].id if policies else "",
        "reservation": str(uuid4()),
        "request_id": str(uuid4()),
        "name": "console.js",
        "backend": "scripted",
        "month": "2026-01",
    }


@each("role", [Role.VIEWER, Role.OPERATOR])
async def test_what_a_role_does_not_allow_is_absent_and_refused(
    site: ConsoleSite, role: Role
) -> None:
    await site.judged.draft()
    ids = await _ids(site, site.judged.scripted.tenant)
    offered: set[str] = set()
    async with _signed_in(site, Person(f"{role}-1", "Vera", role)) as client:
        for name, (method, path) in zip(PERMISSIONS, filled_paths(ids), strict=True):
            allowed = PERMISSIONS[name].allows(role)
            if method == "GET":
                query = f"?organization={ids['organization']}"
                async with client.stream("GET", path + query) as page:
                    assert (page.status_code != 403) == allowed, name
                    # The stream of a live tail never ends, so only HTML pages are read.
                    if page.headers["content-type"].startswith("text/html"):
                        await page.aread()
                        offered |= set(_FORM.findall(page.text))
            elif path != "/sign-out" and not allowed:
                answer = await client.post(path, data={"form_token": "0", "once": "1"})
                assert answer.status_code == 403, name
                assert "does not allow this" in answer.text
    wrong = [
        one
        for one in offered
        for (method, path), access in zip(filled_paths(ids), PERMISSIONS.values(), strict=True)
        if (method, path) == ("POST", one) and not access.allows(role)
    ]
    assert wrong == []
    assert offered >= {"/sign-out"}
    assert (offered == {"/sign-out"}) == (role is Role.VIEWER)


async def test_people_of_an_organization_see_nothing_of_another(site: ConsoleSite) -> None:
    """Opens every address as a person of one organization, with the ids of another organization."""
    own = site.judged.scripted.tenant
    other = await site.judged.scripted.gateway.make_tenant()
    await site.judged.draft()
    marks = await _mark(site, other)
    theirs, ours = await _ids(site, other), await _ids(site, own)
    theirs["policy"] = marks.pop()
    person = Person("eve", "Eve", Role.ORGANIZATION, own.organization_id)
    async with _signed_in(site, person) as client:
        start = await client.get("/", follow_redirects=True)
        assert start.url.path == f"/organizations/{own.organization_id}"
        found = _FORM_TOKEN.search(start.text)
        assert found is not None
        query = "&".join(f"{name}={value}" for name, value in theirs.items())
        leaks = [*marks, theirs["organization"], theirs["key"], theirs["admin_key"]]
        for number, (method, path) in enumerate(filled_paths(theirs)):
            if path == "/sign-out":
                continue
            data = {**theirs, "form_token": found[1], "once": f"{number}", "revision": "1"}
            data |= {"name": "x", "rule": "Is it so?", "amount": "1", "threshold": "10"}
            data |= {"direction": "both", "mode": "monitoring", "scope": "organization"}
            for address in (path, f"{path}?{query}&by=key&by=project&object={theirs['key']}"):
                if method == "GET":
                    answer = await client.get(address)
                    text = answer.text
                else:
                    answer = await client.post(address, data={**data, "once": uuid4().hex})
                    assert answer.status_code in _HTTP_REFUSED, (method, address, answer.text)
                    text = answer.text
                foreign = any(one in path for one in theirs.values() if one)
                if foreign or "?" in address:
                    assert answer.status_code in (*_HTTP_REFUSED, 303), (method, address)
                # An error message may repeat values that the person has sent.
                text = re.sub(r'<p class="notice bad".*?</p>', "", text, flags=re.DOTALL)
                assert [leak for leak in leaks if leak in text] == [], (method, address)
        for method, path in filled_paths(ours):
            access = access_to(method, *_route(path))
            if method == "GET" and access is not None and access.organization:
                answer = await client.get(path)
                assert answer.status_code == 200, path
                assert [leak for leak in leaks if leak in answer.text] == [], path


def _route(path: str) -> tuple[str, str | None]:
    for route in ROUTES:
        found = route.path_regex.fullmatch(path)
        if found and "GET" in (route.methods or ()):
            return route.path, None
    return path, None


async def _mark(site: ConsoleSite, tenant: Tenant) -> list[str]:
    """Creates a project, a key and a policy with unique names. Returns the names, and last the policy's id."""
    services = site.services
    names = [f"mark-{uuid4().hex}" for _ in range(3)]
    await services.projects.project_create(tenant.organization_id, names[0])
    await services.project_keys.project_key_create_by_operator(
        tenant.project_id, names[1], None, None
    )
    made = await site.judged.scripted.gateway.make_policy(tenant, name=names[2], rule="Is it so?")
    return [*names, made["id"]]


async def test_people_of_an_organization_administer_it(site: ConsoleSite) -> None:
    own, services = site.judged.scripted.tenant, site.services
    person = Person("sub-17", "Olga", Role.ORGANIZATION, own.organization_id)
    async with _signed_in(site, person) as client:
        page = await client.get("/keys")
        found = _FORM_TOKEN.search(page.text)
        assert found is not None
        form = {"form_token": found[1], "project": str(own.project_id), "name": "from the console"}
        asked = await client.post("/keys", data={**form, "once": "k1", "permission": "models:read"})
        assert asked.status_code == 403
        created = await client.post("/keys", data={**form, "once": "k2"})
        assert created.status_code == 200
        assert "Save this value now" in created.text
        assert (await client.get("/activity")).status_code == 403
    entries = (
        await services.audit.audit_list(organization_id=own.organization_id, limit=1)
    ).entries
    assert entries[0].change.operation == "project_key_create"
    assert (entries[0].actor.kind, entries[0].actor.name) == (ActorKind.CONSOLE, "Olga (sub-17)")


async def test_a_use_case_that_is_not_listed_is_refused(site: ConsoleSite) -> None:
    tenant = site.judged.scripted.tenant
    other = await site.judged.scripted.gateway.make_tenant()
    own = own_services(site.services, tenant.organization_id)
    for noun in ("traffic", "activity", "audit", "database", "ledger_overview"):
        with pytest.raises(PermissionDenied):
            _ = getattr(own, noun).anything
    with pytest.raises(NotFound):
        await own.projects.project_list(other.organization_id)
    errors = {}
    for project_id in (other.project_id, ProjectId(uuid4())):
        with pytest.raises(NotFound) as refused:
            await own.project_keys.project_key_list(project_id)
        errors[str(project_id)] = str(refused.value)
    # The error does not tell whether the project exists.
    assert len({text.replace(project_id, "ID") for project_id, text in errors.items()}) == 1
    [only] = await own.organizations.organization_list()
    assert only.id == tenant.organization_id
