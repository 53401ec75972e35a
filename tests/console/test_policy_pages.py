"""Tests the console's pages about policies without a browser."""

import base64
import json
import re
from collections.abc import AsyncIterator
from html import unescape

import httpx2
import pytest

from tests.console.test_confirmations import hidden_fields
from tests.support.console_site import TOKEN, ConsoleSite, make_session, serving_console
from tests.support.http_client import http_client
from tollkeeper.policies.calibration.rule import (
    Calibration,
    Fitted,
    LabelledScore,
    Shape,
    guarantees,
    measure,
)
from tollkeeper.policies.judge.rule import prompt_format, score_basis_points
from tollkeeper.policies.policy import JudgeFormat, Policy, StoredCalibration
from tollkeeper.tenants.audit.rule import ActorKind
from tollkeeper.tenants.people import Person, Role

_TAG = re.compile(r"<[^>]+>")


@pytest.fixture
async def operator(site: ConsoleSite) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving_console(site.settings, site.services) as address,
        http_client(address) as client,
    ):
        assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
        yield client


def words(html: str) -> str:
    """Returns the text of a page without its tags."""
    return " ".join(unescape(_TAG.sub(" ", html)).split())


async def _page(operator: httpx2.AsyncClient, path: str) -> str:
    answer = await operator.get(path)
    assert answer.status_code == 200, answer.text
    return words(answer.text)


async def _form_fields(operator: httpx2.AsyncClient, path: str) -> dict[str, str]:
    """Returns the hidden fields that every form of a page has."""
    html = (await operator.get(path)).text
    return dict(re.findall(r'name="(form_token|once)" value="([^"]+)"', html))


async def test_the_costs_page_shows_what_the_judge_used(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    organization = site.judged.scripted.tenant.organization_id
    assert "The judge" not in await _page(operator, f"/costs?organization={organization}")
    await site.judged.enforce(direction="request")
    await site.judged.chat("Hello")
    await site.services.judge_costs.write()
    shown = await _page(operator, f"/costs?organization={organization}")
    assert "judge the-judge 1 7 0 3 0 questions $0" in shown


async def _calibrate(site: ConsoleSite, policy: Policy) -> None:
    """Stores and activates a calibration that does not change scores. Its report is about twenty texts."""
    labelled = [LabelledScore(float(number), number > 0) for number in range(-10, 10)]
    found = measure(labelled)
    unchanged = Calibration(Shape.LINE, ((1.0, 0.0),))
    values = [score_basis_points(one.score) for one in labelled]
    report = found.report() | {"auc": 1.0, "guarantees": guarantees(values[11:], values[:11], 0.95)}
    stored = await site.services.calibrations.calibration_create(
        policy.organization_id,
        policy.id,
        policy.draft.rule,
        JudgeFormat("the-judge", prompt_format()),
        Fitted(unchanged, found.labels, found.before, found.after),
        report,
    )
    await site.services.calibrations.calibration_activate(
        policy.organization_id, policy.id, stored.number
    )


async def _record_values(site: ConsoleSite, policy: Policy, days_ago: int, *values: int) -> None:
    async with site.services.database.transaction() as connection:
        for value in values:
            await connection.execute(
                """
                INSERT INTO verdict_counts AS t (organization_id, policy_id, day, version, direction,
                    probability_basis_points, asked, matched)
                VALUES (%s, %s, %s, 1, 'request', %s, 100, 0)
                ON CONFLICT (organization_id, policy_id, day, version, direction,
                    probability_basis_points) DO UPDATE SET asked = t.asked + excluded.asked
                """,
                (
                    policy.organization_id,
                    policy.id,
                    site.services.clock() // 86_400 - days_ago,
                    value,
                ),
            )


async def _calibrated_days_ago(site: ConsoleSite, policy: Policy, days: int) -> None:
    async with site.services.database.transaction() as connection:
        await connection.execute(
            "UPDATE policies SET calibrated_at = now() - make_interval(days => %s) WHERE id = %s",
            (days, policy.id),
        )


async def test_a_value_is_a_score_until_it_is_calibrated(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    policy = await site.judged.publish(mode="monitoring", match_threshold_basis_points=5750)
    await _record_values(site, policy, 0, 9000)
    shown = await _page(operator, f"/policies/{policy.id}")
    assert "Values are scores of the judge" in shown
    assert "Score from" in shown
    assert "in force: 57.5 %" in shown
    assert "threshold: 57.5 %" in shown
    assert "Drift" not in shown
    await _calibrate(site, policy)
    shown = await _page(operator, f"/policies/{policy.id}")
    assert "Values are probabilities: calibration 1" in shown
    assert "Probability from" in shown
    assert "Expected calibration error" in shown
    assert "Reliability" in (await operator.get(f"/policies/{policy.id}")).text
    assert "basis points" not in shown


async def test_the_slider_has_what_the_labels_support(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    policy = await site.judged.publish(mode="monitoring")
    await _record_values(site, policy, 0, 9000)
    await _calibrate(site, policy)
    html = (await operator.get(f"/policies/{policy.id}")).text
    (data,) = (
        json.loads(unescape(found))
        for found in re.findall(r'<script type="application/json">(.*?)</script>', html)
        if '"threshold"' in found
    )
    assert data["value"] == "probability"
    assert len(data["guarantees"]) == 99
    # At the threshold 51 %, none of the eleven harmless texts is denied. So with 95 % confidence,
    # at most 23.8 % of all harmless texts are denied.
    assert data["guarantees"][50] == pytest.approx([0.2384, 0.2831], abs=2e-4)


async def test_drift_is_on_the_page_and_an_alert(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    policy = await site.judged.publish(mode="monitoring")
    await _calibrate(site, policy)
    alerts = site.services.alerts

    async def raised() -> list[str]:
        await alerts.check()
        return [one.detail for one in await alerts.alert_list() if one.kind == "policy_drift"]

    # Values of the activation's day and of earlier days may be uncalibrated, so they do not count.
    await _record_values(site, policy, 3, 5000, 5000, 5000)
    await _calibrated_days_ago(site, policy, 3)
    assert "too few values" in await _page(operator, f"/policies/{policy.id}")
    (stored,) = await site.services.calibrations.calibration_list(policy.organization_id, policy.id)
    bins = enumerate(stored.report["after"]["reliability"])
    alike = [1000 * tenth + 500 for tenth, found in bins if found for _ in range(found["count"])]
    await _record_values(site, policy, 1, *alike)
    shown = await _page(operator, f"/policies/{policy.id}")
    assert "values are like those at the calibration" in shown
    assert not any(policy.name in one for one in await raised())
    await _record_values(site, policy, 0, *[5000] * 30)
    assert "values differ from those at the calibration" in await _page(
        operator, f"/policies/{policy.id}"
    )
    assert any(policy.name in one for one in await raised())
    # Without an active calibration, there is no drift.
    await site.services.calibrations.calibration_activate(policy.organization_id, policy.id, None)
    assert not any(policy.name in one for one in await raised())


async def test_a_threshold_is_written_in_percent(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    policy = await site.judged.publish(mode="monitoring")
    form = {
        "revision": str(policy.revision),
        "name": policy.name,
        "rule": policy.draft.rule,
        "direction": "both",
        "mode": "monitoring",
        "scope": "organization",
    }
    address = f"/policies/{policy.id}/edit"
    form |= await _form_fields(operator, f"/policies/{policy.id}")
    refused = await operator.post(address, data={**form, "threshold": "5750"})
    assert "give a percentage" in words(refused.text)
    form |= await _form_fields(operator, f"/policies/{policy.id}")
    accepted = await operator.post(address, data={**form, "threshold": "57.5 %"})
    assert accepted.status_code == 303, words(accepted.text)
    edited = await site.services.policies.policy_show(policy.organization_id, policy.id)
    assert edited.draft.match_threshold_basis_points == 5750


async def test_a_rename_keeps_the_lines_of_the_rule_and_the_calibration(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    """Browsers send every line end of a text area as CRLF. A calibration applies only to exactly the
    rule for which it was fitted."""
    rule = "Answer yes only for insults.\nIs the text rude?"
    policy = await site.judged.publish(rule=rule, mode="monitoring")
    await _calibrate(site, policy)
    form = {
        "revision": str(policy.revision),
        "name": f"Renamed {policy.name}",
        "rule": rule.replace("\n", "\r\n"),
        "direction": policy.draft.direction,
        "mode": "monitoring",
        "scope": policy.draft.scope,
    } | await _form_fields(operator, f"/policies/{policy.id}")
    saved = await operator.post(f"/policies/{policy.id}/edit", data=form)
    assert saved.status_code == 303, words(saved.text)
    renamed = await site.services.policies.policy_show(policy.organization_id, policy.id)
    assert renamed.name == form["name"]
    assert renamed.draft.rule == rule
    assert renamed.published == policy.published
    assert "name: Renamed" in words((await operator.get(f"/policies/{policy.id}")).text)
    assert renamed.calibration is not None
    assert renamed.calibration.applies_to(
        renamed.current_rule.rule, JudgeFormat("the-judge", prompt_format())
    )


async def _try_labelled(operator: httpx2.AsyncClient, rule: str, policy: str = "") -> str:
    """Tries a rule on twenty labelled texts and returns the page."""
    fields = await _form_fields(operator, "/policies/try")
    lines = [
        json.dumps(
            {"text": f"{number} bomb" if number % 2 else f"{number}", "label": number % 2 > 0}
        )
        for number in range(20)
    ]
    answer = await operator.post(
        "/policies/try",
        data={**fields, "rule": rule, "policy": policy, "direction": "request"},
        files={"file": ("labelled.jsonl", "\n".join(lines).encode())},
    )
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_a_trial_shows_scores_and_what_a_calibration_improves(
    operator: httpx2.AsyncClient,
) -> None:
    shown = words(await _try_labelled(operator, "Does it say bomb?"))
    assert "Suggested threshold: 50 %" in shown
    assert "What a calibration would improve" in shown
    assert "Verdicts by score" in shown
    assert "90 %" in shown
    assert "basis points" not in shown
    assert "--save" not in shown


async def _calibrations(site: ConsoleSite, policy: Policy) -> list[StoredCalibration]:
    return await site.services.calibrations.calibration_list(policy.organization_id, policy.id)


async def test_the_calibration_of_a_trial_is_saved_once(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    policy = await site.judged.publish(mode="monitoring")
    page = await _try_labelled(operator, policy.draft.rule, policy.id)
    fields = await _form_fields(operator, "/policies/try")
    [trial] = re.findall(r'name="trial" value="([^"]+)"', page)
    # The field of the policy is filled, because the trial was started from the policy's page.
    assert re.search(rf'name="policy" required [^>]*value="{policy.id}"', page)
    sent = {**fields, "trial": trial, "policy": policy.id}
    asked = await operator.post("/policies/try/save", data=sent)
    for shown in (f"Save a calibration of {policy.name}?", "Labelled texts", "do not change until"):
        assert shown in words(asked.text)
    assert await _calibrations(site, policy) == []
    confirmed = hidden_fields(asked.text)
    answer = await operator.post("/policies/try/save", data=confirmed)
    assert answer.status_code == 303, words(answer.text)
    shown = words((await operator.get(answer.headers["location"])).text)
    assert "The calibration is saved." in shown
    # The calibration is stored, but not active.
    assert "Values are scores of the judge: they rank texts but are not probabilities" in shown
    assert (await operator.post("/policies/try/save", data=confirmed)).status_code == 409
    [stored] = await _calibrations(site, policy)
    assert (stored.number, stored.rule) == (1, policy.draft.rule)
    assert stored.judge == JudgeFormat("the-judge", prompt_format())
    assert (stored.report["labels"], stored.report["auc"]) == (20, 1.0)
    assert len(stored.report["guarantees"]) == 99
    entries = await site.services.audit.audit_list(organization_id=policy.organization_id, limit=1)
    change = entries.entries[0].change
    assert (change.operation, change.object_id) == ("calibration_create", policy.id)
    assert entries.entries[0].actor.kind is ActorKind.CONSOLE


async def test_a_calibration_is_saved_only_for_the_rule_of_the_trial(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    policy = await site.judged.publish(mode="monitoring")
    page = await _try_labelled(operator, "Does it mention a bomb?")
    [trial] = re.findall(r'name="trial" value="([^"]+)"', page)
    forged = base64.b64encode(
        base64.b64decode(trial).replace(b"Does it mention a bomb?", policy.draft.rule.encode())
    ).decode()
    for changed, status, message in (
        ({}, 409, "has a different rule"),
        ({"policy": "pol_none"}, 404, "There is no policy pol_none."),
        ({"policy": ""}, 400, "Policy is missing."),
        ({"trial": forged}, 400, "was not signed by this console"),
        ({"trial": "?"}, 400, "was not signed by this console"),
        ({"trial": ""}, 400, "Trial is missing."),
    ):
        for confirmed in ("", "yes"):
            fields = await _form_fields(operator, "/policies/try")
            sent = {**fields, "trial": trial, "policy": policy.id, "confirmed": confirmed}
            answer = await operator.post("/policies/try/save", data=sent | changed)
            assert (answer.status_code, message in words(answer.text)) == (status, True), changed
            # The operator can correct the form without another trial, unless the trial is forged.
            assert (trial in answer.text) == ("trial" not in changed)
    assert await _calibrations(site, policy) == []


async def test_too_few_labels_offer_no_calibration(operator: httpx2.AsyncClient) -> None:
    fields = await _form_fields(operator, "/policies/try")
    sent = {**fields, "rule": "Is it so?", "text": "Yes.", "direction": "request"}
    answer = await operator.post("/policies/try", data=sent)
    assert answer.status_code == 200
    assert "Save calibration" not in answer.text


async def test_only_who_may_publish_is_told_to(
    site: ConsoleSite, operator: httpx2.AsyncClient
) -> None:
    policy = await site.judged.draft(mode="monitoring")
    person = Person("sub-18", "Olga", Role.ORGANIZATION, policy.organization_id)
    async with http_client(site.address, cookies=await make_session(site, person)) as client:
        shown = await _page(client, f"/policies/{policy.id}")
    assert "The policy has verdicts after an operator has published it." in shown
    assert "they rank texts but are not probabilities" in shown
    for hint in ("tollkeeper policy", "Publish the draft", "trial with labelled texts"):
        assert hint not in shown
    shown = await _page(operator, f"/policies/{policy.id}")
    assert "Publish the draft as monitoring" in shown
    assert "A trial with labelled texts creates one." in shown
