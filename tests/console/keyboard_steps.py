"""Lists one use of every action of the console, with the effect by which a test recognises that it worked."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tests.support.console_pages import BILL, BILL_COLUMNS, LABELLED, RULE, Fields, lose_call
from tests.support.console_site import ConsoleSite, make_session
from tollkeeper.tenants.people import Person, Role

Prepare = Callable[[ConsoleSite, Mapping[str, str]], Awaitable[None]]
_ORGANIZATION = "/organizations/{organization}"
_KEYS = "/keys?organization={organization}"
_POLICY = "/policies/{policy}"
_DONE = ".notice.good"


@dataclass(frozen=True)
class Step:
    """Describes the use of one action."""

    # The name of the action in the table of permissions, without its method.
    action: str
    # The address of the page that has the form. It is empty if the step before led to the form.
    page: str
    # The fields to fill in, in the order of the page. The value of a check box is not used.
    fields: Fields = field(default_factory=dict)
    # The effect: an operation that the audit then contains, or an element that the page then shows.
    writes: str = ""
    shows: str = ""
    # CSS selectors of the form and its button, if the action alone does not identify them.
    form: str = ""
    button: str = "button"
    prepare: Prepare | None = None


async def _overspend(site: ConsoleSite, _: Mapping[str, str]) -> None:
    """Charges more than the organization's credit and bound. The next call stops the organization."""
    lost = await lose_call(site)
    await site.services.reconciliation.ledger_resolve(
        lost, settle_picousd=20 * 10**12, confirmed=True
    )
    assert (await site.judged.chat()).status_code == 402
    # The stop stays when the balance is above the bound again.
    await site.services.accounts.credit_grant(site.judged.scripted.tenant.organization_id, 10**13)


async def _one_lost_call(site: ConsoleSite, _: Mapping[str, str]) -> None:
    await lose_call(site)


async def _another_person(site: ConsoleSite, _: Mapping[str, str]) -> None:
    await make_session(site, Person("t.ek", "Tom Ek", Role.OPERATOR))


# The steps of a group run one after another, with the same tenant.
STEPS = {
    "organizations": (
        Step("/organizations", "/organizations", {"name": "Acme"}, "organization_create"),
        Step("/start", "/start", {"organization": "Hooli"}, shows="#key-value"),
        Step(f"{_ORGANIZATION}/rename", _ORGANIZATION, {"name": "Acme 2"}, "organization_rename"),
        Step(f"{_ORGANIZATION}/grant-credit", _ORGANIZATION, {"amount": "1"}, "credit_grant"),
        Step(f"{_ORGANIZATION}/clear-cap", _ORGANIZATION, writes="cap_clear"),
        Step(f"{_ORGANIZATION}/set-cap", _ORGANIZATION, {"amount": "5000"}, "cap_set"),
        Step(f"{_ORGANIZATION}/set-overage", _ORGANIZATION, {"bound": "1"}, "overage_set"),
        Step(
            *(f"{_ORGANIZATION}/clear-overage", _ORGANIZATION),
            writes="overage_clear",
            prepare=_overspend,
        ),
        Step(
            *(f"{_ORGANIZATION}/grant-check", _ORGANIZATION, {"check": "verified"}),
            writes="organization_grant_check",
        ),
        Step(f"{_ORGANIZATION}/revoke-check", _ORGANIZATION, writes="organization_revoke_check"),
        Step(
            *(f"{_ORGANIZATION}/admin-keys", _ORGANIZATION, {"name": "new", "permission": ""}),
            writes="admin_key_create",
            shows="#key-value",
        ),
        Step(
            *(f"{_ORGANIZATION}/admin-keys/{{key}}/rename", _ORGANIZATION, {"name": "other"}),
            writes="admin_key_rename",
        ),
        Step(f"{_ORGANIZATION}/admin-keys/{{key}}", _ORGANIZATION, writes="admin_key_revoke"),
        Step(f"{_ORGANIZATION}/archive", _ORGANIZATION, writes="organization_archive"),
    ),
    "projects": (
        Step(
            *("/projects", "/projects?organization={organization}", {"name": "Shop"}),
            writes="project_create",
        ),
        Step("/projects/{project}/rename", "/projects/{project}", {"name": "A"}, "project_rename"),
        Step("/projects/{project}/set-cap", "/projects/{project}", {"amount": "5"}, "cap_set"),
        Step("/projects/{project}/clear-cap", "/projects/{project}", writes="cap_clear"),
        Step(
            *("/projects/{project}/allow-models", "/projects/{project}", {"models": "example/*"}),
            writes="project_allow_models",
        ),
        Step(
            *("/projects/{project}/set-limits", "/projects/{project}"),
            {"requests_per_minute": "30"},
            writes="limit_set",
        ),
        Step("/projects/{project}/archive", "/projects/{project}", writes="project_archive"),
    ),
    "keys": (
        Step("/keys", _KEYS, {"name": "new"}, "project_key_create", shows="#key-value"),
        Step("/keys/{key}/rename", _KEYS, {"name": "other"}, "project_key_rename"),
        Step("/keys/{key}/allow-models", _KEYS, {"models": "a*"}, "project_key_allow_models"),
        Step("/keys/{key}/set-cap", _KEYS, {"amount": "5"}, "cap_set"),
        Step("/keys/{key}/clear-cap", _KEYS, writes="cap_clear"),
        Step("/keys/{key}/suspend", _KEYS, writes="project_key_suspend"),
        Step("/keys/{key}/unsuspend", _KEYS, writes="project_key_unsuspend"),
        Step(
            *("/keys/{key}/rotate", _KEYS, {"grace_hours": "2"}, "project_key_rotate"),
            shows="#key-value",
        ),
        Step("/keys/{key}/revoke", _KEYS, writes="project_key_revoke"),
    ),
    "policies": (
        Step(
            *("/policies", "/policies?organization={organization}"),
            {"name": "No bombs", "rule": "Does it say bomb?"},
            writes="policy_create",
        ),
        Step(f"{_POLICY}/edit", _POLICY, {"name": "New", "mode": "enforcing"}, "policy_edit"),
        Step(f"{_POLICY}/publish", _POLICY, writes="policy_publish"),
        Step(f"{_POLICY}/set-threshold", _POLICY, {"threshold": ""}, "policy_edit"),
        Step(f"{_POLICY}/pause", _POLICY, writes="policy_pause"),
        Step(f"{_POLICY}/resume", _POLICY, writes="policy_resume"),
        Step("/policies/try", "/policies/try", {"rule": RULE, "file": LABELLED}, shows="#samples"),
        Step("/policies/try/save", "", {"policy": "{policy}"}, "calibration_create"),
        Step(f"{_POLICY}/calibrate", _POLICY, {"number": "1"}, "calibration_activate"),
    ),
    "operations": (
        Step("/verify", "/", shows=_DONE),
        Step(
            *("/playground", "/playground?organization={organization}", {"prompt": "Hello"}),
            shows=".settlement",
        ),
        Step("/backends/{backend}/try", "/backends/{backend}/try", shows="#findings"),
        Step("/doctor", "/doctor", shows="#findings"),
        Step(
            "/reconcile",
            "/reconcile",
            {"file": BILL, "columns": BILL_COLUMNS},
            shows="#differences",
        ),
        Step("/unsettled/recover", "/unsettled", shows=_DONE),
        Step(
            *("/unsettled/{reservation}", "/activity/{reservation}", {"amount": "0.001"}),
            writes="ledger_resolve",
            button='button[value="settle"]',
        ),
        Step(
            *("/unsettled/all", "/unsettled", {"how": ""}, "ledger_resolve_all"),
            prepare=_one_lost_call,
        ),
        Step(
            *("/payments/assign", "/payments?payment={payment}", {"organization": "Acme"}),
            shows=_DONE,
        ),
        Step(
            *("/people/end", "/people"),
            shows='#sessions:not(:has-text("Tom Ek"))',
            form='form:has(button[aria-label*="Tom Ek"])',
            prepare=_another_person,
        ),
        Step(
            *("/sign-out", "/models"),
            shows='form[action="/sign-in"]',
            form='nav.links form[action="/sign-out"]',
            button="button:not([name])",
        ),
    ),
}
_MONTH = 'tr:has-text("{month}")'
# These steps need a ledger with past months.
MONTH_STEPS = (
    Step("/months/close", "/months", shows=f'{_MONTH}:has(a[href="/months/{{month}}.csv.gz"])'),
    Step(
        *("/months/{month}/exported", "/months", {"sha256": "{sha256}"}),
        shows=f'{_MONTH}:has-text("exported")',
    ),
    Step("/months/{month}/drop", "/months", shows=f'{_MONTH}:has-text("dropped")'),
)
