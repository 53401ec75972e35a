"""Tests over HTTP which pages people with each role may see and which actions they may take."""

import importlib
import pkgutil
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from uuid import uuid4

import httpx2
import pytest
from starlette.requests import Request

from tests.support.changed_services import changed
from tests.support.console_pages import filled_paths
from tests.support.console_site import ConsoleSite, make_session, serving_console
from tests.support.gateway import Tenant
from tests.support.http_client import http_client
from tests.support.tables import each
from tollkeeper.actions.own_services import OwnServices
from tollkeeper.console import pages
from tollkeeper.console.app import PERMISSIONS, ROUTES
from tollkeeper.console.changes import FormAction
from tollkeeper.console.context import console_of
from tollkeeper.console.permissions import PUBLIC
from tollkeeper.console.sessions import Session
from tollkeeper.core.access import ProjectId
from tollkeeper.core.errors import NotFound, PermissionDenied
from tollkeeper.core.runtime.minute_rate import MinuteRate
from tollkeeper.policies.policy import PolicyState
from tollkeeper.tenants.administration_rate import AdministrationRate
from tollkeeper.tenants.audit.rule import ActorKind
from tollkeeper.tenants.people import Person, Role

_FORM = re.compile(r'<form[^>]*method="post"[^>]*action="([^"]*)"')
_FORM_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]+)"')
_HTTP_REFUSED = (403, 404)
_COMMAND = re.compile(r"tollkeeper [a-z-]+ [a-z]")
# Pages that show a hint while an organization has no objects of their kind.
_EMPTY_PAGES = ("/projects", "/keys", "/policies", "/costs")


def _actions() -> dict[str, set[str]]:
    """Returns the names of the actions of each page module that has a table of actions."""
    found = {}
    for module in pkgutil.iter_modules(pages.__path__):
        page = importlib.import_module(f"{pages.__name__}.{module.name}")
        actions = getattr(page, "ACTIONS", None)
        if isinstance(actions, dict) and all(
            isinstance(one, FormAction) for one in actions.values()
        ):
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
    assert named == set(PERMISSIONS.table)


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
        for name, (method, path) in zip(PERMISSIONS.table, filled_paths(ids), strict=True):
            allowed = PERMISSIONS.table[name].allows(role)
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
        for (method, path), access in zip(
            filled_paths(ids), PERMISSIONS.table.values(), strict=True
        )
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
            access = PERMISSIONS.access_to(method, *_route(path))
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


async def _administer_policy(
    site: ConsoleSite, client: httpx2.AsyncClient, form: Mapping[str, str]
) -> None:
    """Does with a policy what the API for organizations allows. Everything else is refused."""
    organization, policies = site.judged.scripted.tenant.organization_id, site.services.policies
    rule = {"rule": "Is it so?", "direction": "both", "mode": "monitoring", "scope": "organization"}
    draft = {**form, **rule, "name": "Ours", "organization": str(organization)}
    created = await client.post("/policies", data={**draft, "once": uuid4().hex})
    assert created.status_code == 303
    [policy] = await policies.policy_list(organization)

    async def post(action: str, **fields: str) -> int:
        found = await policies.policy_show(organization, policy.id)
        data = {**form, "once": uuid4().hex, "revision": f"{found.revision}", **fields}
        answer = await client.post(f"/policies/{policy.id}/{action}", data=data)
        return answer.status_code

    assert await post("edit", **rule, name="Renamed") == 303
    assert await post("set-threshold", threshold="7000") == 303
    assert await post("publish", confirmed="yes") == 403
    policy = await policies.policy_show(organization, policy.id)
    assert (policy.name, policy.state) == ("Renamed", PolicyState.DRAFT)
    assert policy.draft.match_threshold_basis_points == 7000
    await policies.policy_publish(organization, policy.id, policy.revision)
    assert await post("pause") == 303
    for action in ("publish", "resume", "calibrate"):
        assert await post(action, confirmed="yes", number="0") == 403, action
    policy = await policies.policy_show(organization, policy.id)
    assert policy.state is PolicyState.PAUSED


async def test_people_of_an_organization_administer_it(site: ConsoleSite) -> None:
    own, services = site.judged.scripted.tenant, site.services
    person = Person("sub-17", "Olga", Role.ORGANIZATION, own.organization_id)
    async with _signed_in(site, person) as client:
        page = await client.get("/keys")
        found = _FORM_TOKEN.search(page.text)
        assert found is not None
        form = {"form_token": found[1], "project": str(own.project_id), "name": "from the console"}
        assert "expires_in_days" not in page.text
        for field in ({"permission": "models:read"}, {"expires_in_days": "30"}):
            asked = await client.post("/keys", data={**form, **field, "once": uuid4().hex})
            assert asked.status_code == 403
            assert "Only operators may choose" in asked.text
        created = await client.post("/keys", data={**form, "once": "k2"})
        assert created.status_code == 200
        assert "Save this value now" in created.text
        assert (await client.get("/activity")).status_code == 403
        await _administer_policy(site, client, {"form_token": found[1]})
        ids = await _ids(site, own)
        for path in (
            f"/projects/{own.project_id}/archive",
            f"/organizations/{own.organization_id}/admin-keys/{ids['admin_key']}",
        ):
            done = {"form_token": found[1], "once": uuid4().hex, "confirmed": "yes"}
            assert (await client.post(path, data=done)).status_code == 303, path
    assert (await services.projects.project_show(own.project_id)).archived_at is not None
    entries = (await services.audit.audit_list(organization_id=own.organization_id)).entries
    assert [entry.change.operation for entry in reversed(entries)] == [
        "project_key_create",
        "policy_create",
        "policy_edit",
        "policy_edit",
        "policy_publish",
        "policy_pause",
        "project_archive",
        "admin_key_revoke",
    ]
    by_console = [entry for entry in entries if entry.change.operation != "policy_publish"]
    actors = {(entry.actor.kind, entry.actor.name) for entry in by_console}
    assert actors == {(ActorKind.CONSOLE, "Olga (sub-17)")}
    key = (await services.project_keys.project_key_list(own.project_id))[0]
    assert key.expires_at is None


async def test_the_administration_rate_applies_to_people_of_an_organization(
    site: ConsoleSite,
) -> None:
    own = site.judged.scripted.tenant
    other = await site.judged.scripted.gateway.make_tenant()
    limited = changed(
        site.services, administration_rate=AdministrationRate(MinuteRate(3, lambda: 10**12))
    )
    person = Person("sub-17", "Olga", Role.ORGANIZATION, own.organization_id)
    neighbour = Person("sub-18", "Nina", Role.ORGANIZATION, other.organization_id)
    async with serving_console(site.settings, limited) as address:
        async with http_client(address, cookies=await make_session(site, person)) as client:
            for _ in range(3):
                # An incomplete form counts too.
                assert (await client.post("/keys", data={})).status_code == 403
            refused = await client.post("/keys", data={})
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "20"
            assert "<h1>Too many requests</h1>" in refused.text
            assert (await client.get("/keys")).status_code == 200
            assert (await client.post("/sign-out", data={})).status_code == 303
        async with http_client(address, cookies=await make_session(site, neighbour)) as client:
            # A large form counts as several requests.
            assert (await client.post("/keys", data={"name": "x" * 8192})).status_code == 403
            assert (await client.post("/keys", data={})).status_code == 429
        operator = Person("sub-19", "Otto", Role.OPERATOR)
        async with http_client(address, cookies=await make_session(site, operator)) as client:
            for _ in range(5):
                assert (await client.post("/keys", data={})).status_code == 403


async def test_problem_pages_say_what_is_wrong_and_lead_back(site: ConsoleSite) -> None:
    own = site.judged.scripted.tenant
    of_organization = Person("sub-17", "Olga", Role.ORGANIZATION, own.organization_id)
    start = f"/organizations/{own.organization_id}"
    viewer = Person("sub-18", "Vera", Role.VIEWER)
    for person, path, status, heading, back in (
        (of_organization, "/activity", 403, "Not allowed", f'"{start}">Back to the organization'),
        (of_organization, f"/projects/{uuid4()}", 404, "Not found", f'"{start}">Back to the org'),
        (viewer, "/people", 403, "Not allowed", '"/">Back to the overview'),
        (viewer, "/nowhere", 404, "Not found", '"/">Back to the overview'),
        (viewer, "/activity?range=9y", 400, "Not possible", '"/">Back to the overview'),
    ):
        async with _signed_in(site, person) as client:
            answer = await client.get(path)
            assert answer.status_code == status, path
            assert f"<h1>{heading}</h1>" in answer.text, path
            assert f"<a href={back}" in answer.text, path


@each("has_project", [False, True])
async def test_people_without_a_shell_see_no_commands(site: ConsoleSite, has_project: bool) -> None:
    services = site.services
    organization = await services.organizations.organization_create(f"Empty {uuid4().hex}")
    if has_project:
        await services.projects.project_create(organization.id, "Web")
    paths = [f"{path}?organization={organization.id}" for path in _EMPTY_PAGES]
    paths.append(f"/organizations/{organization.id}")
    for person, sees_commands, sees_forms in (
        (Person("a", "Olga", Role.ORGANIZATION, organization.id), False, has_project),
        (Person("b", "Vera", Role.VIEWER), True, False),
        (Person("c", "Otto", Role.OPERATOR), True, True),
    ):
        async with _signed_in(site, person) as client:
            texts = [(await client.get(path)).text for path in paths]
        assert any(_COMMAND.search(text) for text in texts) == sees_commands, person.role
        assert any("Create one below" in text for text in texts) == sees_forms, person.role


async def test_a_use_case_that_is_not_listed_is_refused(site: ConsoleSite) -> None:
    tenant = site.judged.scripted.tenant
    other = await site.judged.scripted.gateway.make_tenant()
    own = OwnServices(site.services, tenant.organization_id)
    for noun in ("activity", "audit", "database", "names", "payments", "backends", "settings"):
        assert not hasattr(own, noun)
    for noun, use_case in (
        *(("traffic", "call_story"), ("ledger_overview", "credit_list")),
        *(("accounts", "credit_grant"), ("caps", "cap_set")),
        *(("project_keys", "project_key_show"), ("admin_keys", "admin_key_create")),
    ):
        assert hasattr(getattr(site.services, noun), use_case)
        assert not hasattr(getattr(own, noun), use_case)
    # A page for operators that forgets its permission gets an error instead of all services.
    person = Person("sub-19", "Olga", Role.ORGANIZATION, tenant.organization_id)
    with pytest.raises(PermissionDenied):
        console_of(Request({"type": "http", "session": Session(b"", b"", person)}))
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


async def test_no_use_case_reaches_another_organization(site: ConsoleSite) -> None:
    tenant = site.judged.scripted.tenant
    other = await site.judged.scripted.gateway.make_tenant()
    policy = await site.judged.scripted.gateway.make_policy(other, name="Secret", rule="Is it so?")
    own = OwnServices(site.services, tenant.organization_id)
    reached = 0
    restricted = [
        one for one in vars(own).values() if type(one).__module__ == OwnServices.__module__
    ]
    for service in restricted:
        for name, use_case in vars(service).items():
            if name.startswith("_"):
                continue
            by_policy = name == "policy_organization"
            for foreign in (
                [policy["id"]] if by_policy else [other.organization_id, other.project_id]
            ):
                with pytest.raises(NotFound):
                    await use_case(foreign)
            reached += 1
    assert reached >= 25
