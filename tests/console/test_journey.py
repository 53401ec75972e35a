"""Tests what an operator does in a browser, and checks the results in the services."""

from collections.abc import Callable
from uuid import UUID

import pytest
from playwright.async_api import expect

from tests.support.console_site import ConsoleSite, Watched, confirm
from tests.support.judged_gateway import Asked, Opinion
from tests.support.upstream import chat, reset_before_headers
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.unsettled.bulk_resolution import BulkAction
from tollkeeper.policies.policy import PolicyState

pytestmark = pytest.mark.slow


def _always(probability: int) -> Callable[[Asked], Opinion]:
    return lambda _: probability


@pytest.mark.smoke
async def test_from_an_organization_to_a_key_that_works(
    site: ConsoleSite, watched: Watched
) -> None:
    page = watched.page
    await page.goto(f"{site.address}/organizations")
    await page.get_by_label("Name", exact=True).fill("Northwind")
    await page.get_by_role("button", name="Create organization").click()
    await expect(page.get_by_role("heading", name="Northwind")).to_be_visible()
    await page.get_by_label("Amount in USD").fill("12.5")
    await page.get_by_label("Note").fill("first credit")
    await page.get_by_role("button", name="Grant credit").click()
    await confirm(page, "Grant $12.50")
    await expect(page.get_by_text("$12.50 was granted.")).to_be_visible()
    await page.get_by_label("New project").fill("Shop")
    await page.get_by_role("button", name="Create project").click()
    await expect(page.get_by_role("heading", name="Shop")).to_be_visible()
    await page.get_by_label("Requests a minute").fill("30")
    await page.get_by_role("button", name="Set limits").click()
    await expect(page.get_by_text("The limits are set.")).to_be_visible()
    await page.get_by_label("More of this project").get_by_role("link", name="Keys").click()
    await page.get_by_label("Name", exact=True).fill("shop server")
    await page.get_by_role("button", name="Create key").click()
    value = await page.locator("#key-value").text_content()
    assert value is not None
    answered = await site.judged.chat(headers={"Authorization": f"Bearer {value}"})
    assert answered.status_code == 200, answered.text
    entry = await site.judged.entry(answered)
    limits = await site.services.accounts.limit_show(entry.project_id)
    assert (limits.requests_per_minute.value, limits.concurrency.is_default) == (30, True)
    balance = await site.services.accounts.credit_show(entry.organization_id)
    assert balance.granted_picousd == 125 * 10**11


async def test_the_value_of_a_key_is_shown_once(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    keys = f"{site.address}/keys?organization={tenant.organization_id}"
    await page.goto(keys)
    await page.get_by_label("Name", exact=True).fill("once")
    await page.get_by_role("button", name="Create key").click()
    value = await page.locator("#key-value").text_content()
    assert value is not None
    assert value.startswith("tkp_")
    # Reloading the page sends the form again, but creates no second key.
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("was sent before")
    watched.faults.clear()  # The browser's console reports the status 409.
    for path in (keys, f"{site.address}/projects/{tenant.project_id}"):
        await page.goto(path)
        assert value not in await page.content()
    made = await site.services.project_keys.project_key_list(tenant.project_id)
    assert [key.name for key in made] == ["app", "once"]


async def test_a_key_is_suspended_and_revoked(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await page.goto(f"{site.address}/keys?organization={tenant.organization_id}")
    await page.get_by_role("button", name="Suspend app").click()
    await expect(page.get_by_text("The key is suspended.")).to_be_visible()
    assert (await site.judged.chat()).status_code == 401
    await page.get_by_role("button", name="Unsuspend app").click()
    await expect(page.get_by_text("The key is active again.")).to_be_visible()
    assert (await site.judged.chat()).status_code == 200
    await page.get_by_role("button", name="Revoke app").click()
    await confirm(page, "Revoke key")
    await expect(page.get_by_text("The key is revoked.")).to_be_visible()
    assert (await site.judged.chat()).status_code == 401


async def test_caps_of_a_key_and_of_its_organization(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await page.goto(f"{site.address}/keys?organization={tenant.organization_id}")
    for amount, period in (("0", "day"), ("7.5", "month")):
        await page.locator("summary", has_text="Set cap").click()
        form = page.locator('form[action$="/set-cap"]')
        await form.get_by_label("Cap in USD").fill(amount)
        await form.get_by_label("Period").select_option(period)
        await form.get_by_role("button", name="Set cap of app").click()
        await expect(page.get_by_text("The cap is set.")).to_be_visible()
    await expect(page.get_by_text("a day; the next day begins in")).to_be_visible()
    refused = await site.judged.chat()
    assert refused.status_code == 402
    assert "The API key's daily spending cap" in refused.json()["error"]["message"]
    await page.get_by_role("button", name="Remove the cap of app: day").click()
    await expect(page.get_by_text("The cap was removed.")).to_be_visible()
    assert (await site.judged.chat()).status_code == 200

    await page.goto(f"{site.address}/organizations/{tenant.organization_id}")
    caps = page.get_by_role("region", name="Caps")
    await expect(caps.get_by_role("heading", name="Key app")).to_be_visible()
    await caps.get_by_label("Cap in USD").fill("3")
    await caps.get_by_label("Period").select_option("week")
    await caps.get_by_role("button", name="Set cap").click()
    await expect(page.get_by_text("The cap is set.")).to_be_visible()
    found = await site.services.caps.cap_show(tenant.organization_id)
    assert [(use.key_id is None, use.cap.period, use.cap.amount_picousd) for use in found] == [
        (True, CapPeriod.WEEK, 3 * 10**12),
        (False, CapPeriod.MONTH, 75 * 10**11),
    ]
    await page.get_by_role("button", name="Remove the cap of the organization: week").click()
    await expect(page.get_by_text("The cap was removed.")).to_be_visible()
    await page.goto(f"{site.address}/projects/{tenant.project_id}")
    project = page.get_by_role("region", name="Caps")
    for period in ("total", "day"):
        await project.get_by_label("Cap in USD").fill("9")
        await project.get_by_label("Period").select_option(period)
        await project.get_by_role("button", name="Set cap").click()
        await expect(page.get_by_text("The cap is set.")).to_be_visible()
    await project.get_by_role("button", name="Remove the cap of the project: day").click()
    await expect(page.get_by_text("The cap was removed.")).to_be_visible()
    [own, _] = await site.services.caps.cap_show(tenant.organization_id)
    assert (own.project_id, own.cap.period) == (tenant.project_id, CapPeriod.TOTAL)


async def test_a_policy_from_a_question_to_enforcing(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await page.goto(f"{site.address}/policies?organization={tenant.organization_id}")
    await page.get_by_label("Name", exact=True).fill("No bombs")
    await page.get_by_label("Question").fill("Does it say bomb?")
    await page.get_by_label("Judges").select_option("request")
    await page.get_by_label("Mode").select_option("enforcing")
    await page.get_by_role("button", name="Create draft").click()
    await expect(page.get_by_text("Nothing is judged before it is published.")).to_be_visible()
    address = page.url
    await page.get_by_role("link", name="Try it").click()
    await page.get_by_label("A text").fill("there is a bomb")
    await page.get_by_role("button", name="Ask the judge").click()
    await expect(page.locator("#samples tbody tr td").first).to_have_text("90 %")
    await expect(page.get_by_role("alert")).to_have_count(0)
    # The form still contains the question and the text, so that they can be changed.
    await expect(page.get_by_label("Question")).to_have_value("Does it say bomb?")
    await expect(page.get_by_label("A text")).to_have_value("there is a bomb")
    await page.goto(address)
    await page.get_by_role("button", name="Publish draft").click()
    await confirm(page, "Publish as enforcing")
    await expect(page.get_by_text("The draft is published.")).to_be_visible()
    assert (await site.judged.chat("a bomb")).status_code == 403
    assert (await site.judged.chat("peace")).status_code == 200
    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_text("The policy is paused.")).to_be_visible()
    assert (await site.judged.chat("a bomb")).status_code == 200
    await page.get_by_role("button", name="Resume").click()
    await confirm(page, "Resume as enforcing")
    await expect(page.get_by_text("The policy is in force again.")).to_be_visible()
    await page.get_by_label("Question").fill("Does it say grenade?")
    await page.get_by_role("button", name="Save draft").click()
    pending = page.locator(".difference").first
    await expect(pending).to_contain_text("+ Does it say grenade?")
    await page.get_by_role("button", name="Publish draft").click()
    await confirm(page, "Publish as enforcing")
    life = page.locator(".life")
    await expect(life).to_contain_text("Version 2")
    await expect(life.locator(".removed")).to_contain_text("Does it say bomb?")
    [policy] = await site.services.policies.policy_list(tenant.organization_id)
    assert policy.state is PolicyState.ENFORCING
    assert policy.published is not None
    assert policy.published.version == 2


async def test_a_labelled_file_suggests_a_threshold(site: ConsoleSite, watched: Watched) -> None:
    page = watched.page
    await page.goto(f"{site.address}/policies/try")
    await page.get_by_label("Question").fill("Does it say bomb?")
    lines = '{"text": "a bomb", "label": true}\n{"text": "peace", "label": false}\n'
    await page.get_by_label("or a labelled file").set_input_files(
        {"name": "texts.jsonl", "mimeType": "application/jsonl", "buffer": lines.encode()}
    )
    await page.get_by_role("button", name="Ask the judge").click()
    await expect(page.get_by_text("Suggested threshold: 50 %")).to_be_visible()
    await expect(page.locator("#threshold-matches")).to_have_text("1")
    await expect(page.get_by_role("alert")).to_have_count(0)


async def test_a_threshold_is_dragged(site: ConsoleSite, watched: Watched) -> None:
    """Moves the line in the chart by mouse, and then the slider by keyboard. The counts change at once."""
    page = watched.page
    policy = await site.judged.publish("bomb", direction="request")
    probabilities = (1200, 3400, 5600, 7800, 9000)
    for probability in probabilities:
        site.judged.judge.opinion = _always(probability)
        await site.judged.entry(await site.judged.chat(f"Hello {probability}"))
    await page.goto(f"{site.address}/policies/{policy.id}")
    matches = page.locator("#threshold-matches")
    await expect(matches).to_have_text("3")
    await page.wait_for_function("document.querySelector('#probabilities').dataset.drawn === 'yes'")
    line = await page.locator("#probabilities .shapelayer path").first.bounding_box()
    drag_layer = await page.locator("#probabilities .draglayer .nsewdrag").bounding_box()
    assert line is not None
    assert drag_layer is not None
    x, y = line["x"] + line["width"] / 2, drag_layer["y"] + drag_layer["height"] / 2
    await page.mouse.move(x, y)
    await page.mouse.down()
    await page.mouse.move(drag_layer["x"] + drag_layer["width"] * 0.25, y, steps=12)
    await page.mouse.up()
    await expect(matches).to_have_text("4")
    slider = page.locator("#threshold-slider")
    dragged = int(await slider.input_value())
    assert 2300 <= dragged <= 2700
    await slider.focus()
    await slider.press("Home")
    await expect(matches).to_have_text("5")
    for _ in range(3):
        await slider.press("ArrowRight")
    await expect(page.locator("#threshold-value")).to_have_text("0.04 %")
    await page.get_by_role("button", name="Use in the draft").click()
    await expect(page.get_by_text("The draft was changed.")).to_be_visible()
    shown = await site.services.policies.policy_show(policy.organization_id, policy.id)
    assert shown.draft.match_threshold_basis_points == 4
    assert shown.published == policy.published


async def test_a_call_is_found_by_its_id(site: ConsoleSite, watched: Watched) -> None:
    page = watched.page
    policy = await site.judged.publish("Hello", direction="request")
    answered = await site.judged.chat("Hello")
    entry = await site.judged.entry(answered)
    await page.goto(f"{site.address}/activity")
    await page.get_by_label("Find a call by its id").fill(str(entry.request_id))
    await page.get_by_role("button", name="Find").click()
    await page.wait_for_url(f"**/activity/{entry.request_id}")
    # The page shows the exact calculation of the hold.
    story = await site.services.traffic.call_story(UUID(str(entry.request_id)))
    assert story.ledger is not None
    hold = story.ledger.hold
    assert hold.hold_picousd == 200_000 * hold.prompt_tokens_max + 800_000 * hold.output_tokens_max
    shown = await page.locator("#hold-total").text_content()
    assert shown == f"${hold.hold_picousd / 10**12:.12f}".rstrip("0")
    content = await page.locator("main").inner_text()
    for expected in (policy.name, "90 %", "matched", entry.replica, "settled", "Admission until"):
        assert expected is not None
        assert expected in content, expected


async def test_unsettled_calls_are_resolved(site: ConsoleSite, watched: Watched) -> None:
    page, services = watched.page, site.services
    # Other tests of the site leave unsettled calls of the same backend.
    left = await services.bulk_resolution.ledger_backlog(older_than_s=0)
    await services.bulk_resolution.ledger_resolve_all(left.selection, BulkAction.RELEASE)
    site.judged.model.play(reset_before_headers())
    lost = [await site.judged.chat() for _ in range(3)]
    site.judged.model.play(chat())
    entries = [await site.judged.entry(answer) for answer in lost]
    assert [entry.settlement for entry in entries] == ["unsettled"] * 3
    await page.goto(f"{site.address}/unsettled")
    row = page.locator("#unsettled tr", has_text=str(entries[0].request_id)[-8:])
    await row.get_by_label(f"Cost of {entries[0].request_id} in USD").fill("0.0001")
    await row.get_by_role("button", name="Settle").click()
    await confirm(page, "Charge $0.0001")
    await expect(page.get_by_text("The call is settled: $0.0001 was charged.")).to_be_visible()
    settled = await services.activity.activity_show(entries[0].request_id)
    assert (settled.settlement, settled.cost_picousd) == ("settled", 10**8)
    # All unsettled calls of a backend are resolved at once.
    form = page.locator("form[action='/unsettled/all']")
    await form.get_by_label("Backend").select_option("scripted")
    await form.get_by_label("Release").check()
    await form.get_by_role("button", name="Resolve all").click()
    hold = usd_from_picousd(sum(entry.hold_picousd or 0 for entry in entries[1:]))
    await confirm(page, f"Release ${hold}")
    await expect(page.get_by_text(f"are released: ${hold} was given back.")).to_be_visible()
    for entry in entries[1:]:
        resolved = await services.activity.activity_show(entry.request_id)
        assert (resolved.settlement, resolved.cost_picousd) == ("released", 0)
    await expect(page.get_by_text("Nothing is unsettled")).to_be_visible()
    assert await services.reconciliation.ledger_verify() == []


async def test_a_key_is_rotated_with_a_grace(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await page.goto(f"{site.address}/keys?organization={tenant.organization_id}")
    await page.get_by_text("Rotate", exact=True).click()
    await page.get_by_label("Hours until the old key expires").fill("2")
    await page.get_by_role("button", name="Rotate now").click()
    await expect(page.get_by_text("It replaces app")).to_be_visible()
    value = await page.locator("#key-value").text_content()
    assert value is not None
    assert value != tenant.project_key
    for key in (value, tenant.project_key):
        answered = await site.judged.chat(headers={"Authorization": f"Bearer {key}"})
        assert answered.status_code == 200
    old, new = await site.services.project_keys.project_key_list(tenant.project_id)
    assert old.expires_at is not None
    assert new.created_at + 2 * 3600 - 5 <= old.expires_at <= new.created_at + 2 * 3600 + 5
    assert new.expires_at is None


async def test_the_models_of_a_project_and_of_a_key_are_chosen(
    site: ConsoleSite, watched: Watched
) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await page.goto(f"{site.address}/projects/{tenant.project_id}")
    field = page.get_by_label("Allowed models")
    await field.fill("example/*, claude-*")
    await page.get_by_role("button", name="Set models").click()
    refusal = "No model of the settings matches claude-*."
    await expect(page.get_by_role("alert")).to_have_text(refusal)
    await expect(field).to_have_value("example/*, claude-*")
    await field.fill("example/*, example/chat*")
    await page.get_by_role("button", name="Set models").click()
    await expect(page.get_by_text("The list of models is set.")).to_be_visible()
    await expect(field).to_have_value("example/* example/chat*")
    assert (await site.judged.chat()).status_code == 200
    # A later catalogue may lack the model.
    projects, keys = site.services.projects, site.services.project_keys
    await projects.project_allow_models(tenant.project_id, ["example/*", "claude-*"])
    await page.reload()
    await expect(page.get_by_text(refusal)).to_be_visible()

    await page.goto(f"{site.address}/keys?organization={tenant.organization_id}")
    await page.locator('summary[aria-label="Every model, models of app"]').click()
    await page.get_by_label("Allowed models").fill("example/*")
    await page.get_by_role("button", name="Set models of app").click()
    await expect(page.get_by_text("1 allowed", exact=True)).to_be_visible()
    [key] = await keys.project_key_list(tenant.project_id)
    assert key.models == ("example/*",)
    await keys.project_key_allow_models(key.id, ["claude-*"])
    assert (await site.judged.chat()).status_code == 403

    await page.goto(f"{site.address}/projects/{tenant.project_id}")
    await field.fill("*-mini")
    await page.get_by_role("button", name="Set models").click()
    await expect(page.get_by_role("alert")).to_contain_text("not at its end")
    await expect(field).to_have_value("*-mini")
    watched.faults.clear()  # The browser's console reports the status 400.
    changes = (await site.services.audit.audit_list(organization_id=tenant.organization_id)).entries
    in_console = [one.change.operation for one in changes if one.actor.kind == "console"]
    assert in_console == ["project_key_allow_models", "project_allow_models"]


async def test_changes_are_in_the_audit_with_their_session(
    site: ConsoleSite, watched: Watched
) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    organization = tenant.organization_id
    await page.goto(f"{site.address}/organizations/{organization}")
    await page.get_by_label("Amount in USD").fill("3")
    await page.get_by_role("button", name="Grant credit").click()
    await confirm(page, "Grant $3.00")
    await expect(page.get_by_text("$3.00 was granted.")).to_be_visible()
    await page.goto(f"{site.address}/audit?organization={organization}")
    row = page.locator("#changes tbody tr").first
    await expect(row).to_contain_text("credit_grant")
    await expect(row).to_contain_text("console")
    await row.locator("summary").click()
    await expect(row.locator("del")).to_have_text("10")
    await expect(row.locator("ins").first).to_have_text("13")
    newest = (await site.services.audit.audit_list(organization_id=organization)).entries[0]
    assert newest.actor.kind == "console"
    assert newest.actor.name.startswith("session ")


async def test_an_amount_that_is_none_is_explained(site: ConsoleSite, watched: Watched) -> None:
    page, tenant = watched.page, site.judged.scripted.tenant
    await page.goto(f"{site.address}/organizations/{tenant.organization_id}")
    await page.get_by_label("Amount in USD").fill("a lot")
    await page.get_by_label("Note").fill("kept")
    await page.get_by_role("button", name="Grant credit").click()
    await expect(page.get_by_role("alert")).to_have_text("'a lot' is not a decimal amount in USD.")
    # The form still contains the entered values, so that they can be corrected.
    await expect(page.get_by_label("Amount in USD")).to_have_value("a lot")
    await expect(page.get_by_label("Note")).to_have_value("kept")
    watched.faults.clear()  # The browser's console reports the status 400.
    balance = await site.services.accounts.credit_show(tenant.organization_id)
    assert balance.granted_picousd == 10**13


async def test_a_list_follows_by_itself(site: ConsoleSite, watched: Watched) -> None:
    """A new call appears in the list and in the chart of an open page, without a reload."""
    page, tenant = watched.page, site.judged.scripted.tenant
    await site.judged.entry(await site.judged.chat())
    await page.goto(f"{site.address}/activity?organization={tenant.organization_id}")
    rows = page.locator("#calls tbody tr")
    await expect(rows).to_have_count(1)
    await page.evaluate("window.loadedOnce = true")
    later = await site.judged.entry(await site.judged.chat())
    await expect(rows).to_have_count(2, timeout=20_000)
    await expect(rows.first).to_contain_text(str(later.request_id)[-8:])
    drawn = "document.querySelector('#volume').dataset.drawn === 'yes'"
    await page.wait_for_function(drawn)
    counted = "document.querySelector('#volume .plot').data.flatMap(one => one.y)"
    assert sum(await page.evaluate(counted)) == 2
    assert await page.evaluate("window.loadedOnce") is True
