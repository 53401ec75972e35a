"""Lists all pages of the console from the table of permissions, so new pages are included, and the views that
its forms lead to. Makes objects of every kind for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from playwright.async_api import FilePayload, Locator, Page

from tests.support import stripe_events as stripe
from tests.support.console_site import ConsoleSite
from tests.support.upstream import chat, reset_before_headers
from tollkeeper.console.app import PERMISSIONS
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.payments.stripe_events import read_event
from tollkeeper.tenants.people import Role

# The values of fields by their names.
Fields = Mapping[str, str | FilePayload]
# Endings of paths whose answers are not pages: files, and a stream of events.
_NO_PAGES = (".csv", ".gz", "/export", "/tail")
_OPEN_DETAILS = 'for (const one of document.querySelectorAll("details")) one.open = true'
# Labelled texts about the policy that `make_objects` publishes, enough for a calibration.
LABELLED = FilePayload(
    name="texts.jsonl",
    mimeType="application/jsonl",
    buffer=b"".join(
        b'{"text": "%d secret", "label": true}\n{"text": "%d", "label": false}\n' % (one, one)
        for one in range(10)
    ),
)
RULE = "Does it say secret?"
# The forms that ask for a confirmation. The ledger of these tests has no month that could be closed.
ASKING_FORMS = 'main form[data-ask]:not([action="/months/close"])'
BILL = FilePayload(
    name="bill.csv",
    mimeType="text/csv",
    buffer=b"date,model,calls\n2020-01-01,a,3\n",
)


BILL_COLUMNS = "day=date,model=model,requests=calls"


@dataclass(frozen=True)
class View:
    """Describes what a page shows after a form was sent."""

    name: str
    path: str
    # The CSS selector of the form.
    form: str
    # `{unique}` in a value stands for text that differs each time, because names are unique.
    fields: Fields = field(default_factory=dict)
    # The CSS selector of an element that appears after the form was sent.
    shows: str = "dialog[open]"
    # Whether the form is sent as if the browser had no scripts.
    without_dialog: bool = False


def filled_paths(ids: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the method and the path of every route and action, in the order of the table."""
    filled = []
    for name in PERMISSIONS.table:
        method, path = name.split(" ")
        of_path = {**ids, "key": ids["admin_key"]} if "admin-keys" in path else ids
        filled.append((method, path.format_map(of_path)))
    return filled


def page_paths(ids: Mapping[str, str], role: Role = Role.OWNER) -> list[str]:
    """Returns the path of every page that the role may see."""
    return [
        path
        for (method, path), access in zip(
            filled_paths(ids), PERMISSIONS.table.values(), strict=True
        )
        if method == "GET" and not path.endswith(_NO_PAGES) and access.allows(role)
    ]


def general_paths() -> list[str]:
    """Returns the path of every page that is not about one object."""
    paths = [name.removeprefix("GET ") for name in PERMISSIONS.table if name.startswith("GET ")]
    return [path for path in paths if "{" not in path and not path.endswith(_NO_PAGES)]


def page_addresses(ids: Mapping[str, str]) -> list[str]:
    """Returns the address of every page for the organization and the payment, and of further views of these
    pages."""
    of = f"organization={ids['organization']}&payment={ids['payment']}"
    return [
        *(f"{path}?{of}" for path in page_paths(ids)),
        f"/activity?{of}&status=2xx&policy={ids['policy']}&matched=1",
        f"/activity?{of}&sort=cost-ascending",
        f"/activity/{ids['reservation']}",
        *(f"/costs?{of}&by={by}" for by in ("project", "key", "line_item")),
    ]


def form_views(ids: Mapping[str, str]) -> list[View]:
    """Returns the dialogs, confirmations and results that forms of the pages lead to."""
    of = f"organization={ids['organization']}"
    organization = f"/organizations/{ids['organization']}"
    grant = 'form[action$="/grant-credit"]'
    bill: Fields = {"columns": BILL_COLUMNS, "file": BILL}
    return [
        View("grant-dialog", organization, grant, {"amount": "2.5"}),
        View(
            *("grant-confirmation", organization, grant, {"amount": "2.5"}),
            shows="[data-confirmation]",
            without_dialog=True,
        ),
        View("grant-wrong", organization, grant, {"amount": "lots"}, shows=".notice.bad"),
        View("archive-dialog", organization, 'main form[action$="/archive"]'),
        View(
            *(
                "key-created",
                f"/keys?{of}",
                'form[action^="/keys?"][method="post"]',
                {"name": "key {unique}"},
            ),
            shows="#key-value",
        ),
        View(
            *("admin-key-created", organization, 'form[action$="/admin-keys"]'),
            {"name": "key {unique}", "permission": "admin_api_keys:read"},
            shows="#key-value",
        ),
        View(
            *(
                "playground-answer",
                f"/playground?{of}",
                'form[action^="/playground"][method="post"]',
            ),
            shows=".settlement",
        ),
        View("doctor-result", "/doctor", 'main form[action="/doctor"]', shows="#findings"),
        View(
            *("reconcile-result", "/reconcile", 'form[action="/reconcile"]', bill),
            shows="#differences",
        ),
        View(
            *("trial-result", "/policies/try", 'form[action="/policies/try"]'),
            {"rule": RULE, "file": LABELLED},
            shows="#samples",
        ),
    ]


async def make_objects(site: ConsoleSite) -> dict[str, str]:
    """Creates objects of every kind for the tenant of the site, and returns their ids."""
    judged, tenant = site.judged, site.judged.scripted.tenant
    policy = await judged.publish("secret", direction="request")
    answered = await judged.chat("a secret")
    assert (await judged.entry(answered)).verdicts
    lost = await lose_call(site)
    await site.services.caps.cap_set(tenant.organization_id, 10**12, CapPeriod.MONTH)
    payment = stripe.new_payment()
    for body in (stripe.succeeded(payment, 5), stripe.succeeded(payment, 5, "W" * 80)):
        await site.services.payments.payment_receive(read_event(body))
    key = (await site.services.project_keys.project_key_list(tenant.project_id))[0]
    admin = await site.services.admin_keys.admin_key_list(
        tenant.organization_id, after=None, limit=1
    )
    return {
        "organization": str(tenant.organization_id),
        "project": str(tenant.project_id),
        "key": str(key.id),
        "admin_key": str(admin.keys[0].id),
        "policy": policy.id,
        "reservation": str(lost),
        "request_id": answered.headers["x-request-id"],
        "backend": "scripted",
        "month": "2026-01",
        "payment": payment,
    }


async def lose_call(site: ConsoleSite) -> UUID:
    """Makes a call whose cost stays unknown, and returns its id."""
    site.judged.model.play(reset_before_headers())
    lost = await site.judged.entry(await site.judged.chat())
    site.judged.model.play(chat())
    assert lost.settlement == "unsettled"
    return lost.request_id


async def open_details(page: Page) -> None:
    await page.evaluate(_OPEN_DETAILS)


async def fill_required(form: Locator) -> None:
    """Fills in the required fields of a form that have no value."""
    fields = form.locator(":is(input, textarea, select):invalid")
    while await fields.count():
        kind = await fields.first.evaluate("one => one.type")
        if kind == "radio":
            await fields.first.check()
        elif kind == "select-one":
            await fields.first.select_option(index=1)
        else:
            await fields.first.fill("1")


async def open_dialog(page: Page) -> bool:
    """Opens the confirmation dialog of the first form that has one. Returns whether there is such a form."""
    form = page.locator(ASKING_FORMS).first
    if not await form.count():
        return False
    await fill_required(form)
    await form.locator("button").last.click()
    await page.locator("dialog[open]").wait_for()
    return True


async def open_view(page: Page, site_address: str, view: View) -> None:
    """Opens the page, sends the form, and waits for the view."""
    await page.goto(site_address + view.path)
    form = page.locator(view.form).first
    for name, value in view.fields.items():
        control = form.locator(f'[name="{name}"]')
        if isinstance(value, str) and await control.first.get_attribute("type") == "checkbox":
            await form.locator(f'[name="{name}"][value="{value}"]').check()
        elif isinstance(value, str):
            await control.fill(value.replace("{unique}", uuid4().hex[:8]))
        else:
            await control.set_input_files(value)
    if view.without_dialog:
        await form.evaluate("one => { delete one.dataset.ask }")
    await form.locator("button").last.click()
    await page.locator(view.shows).first.wait_for()
    await page.wait_for_load_state()
