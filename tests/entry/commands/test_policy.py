"""Tests `tollkeeper policy`."""

import asyncio
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.gateway import Gateway, Tenant
from tests.support.judged_gateway import ScriptedJudge
from tests.support.program import Program


@pytest.fixture
async def draft(gateway: Gateway, tenant: Tenant) -> dict[str, Any]:
    return await gateway.make_policy(tenant, mode="enforcing")


def test_listed_and_shown_as_the_api_shows_it(
    program: Program, tenant: Tenant, draft: dict[str, Any]
) -> None:
    assert program.json("policy", "list", str(tenant.organization_id)) == {"data": [draft]}
    assert program.json("policy", "show", draft["id"]) == draft
    shown = program.run("policy", "show", draft["id"])
    assert "draft.rule" in shown.out


def test_created_edited_and_shown(program: Program, tenant: Tenant) -> None:
    organization, name = str(tenant.organization_id), f"No secrets {uuid4().hex}"
    rule = ("--rule", "Does the text contain a secret?")
    created = program.json("policy", "create", organization, name, *rule)
    assert (created["name"], created["description"]) == (name, "")
    assert (created["state"], created["revision"]) == ("draft", 1)
    assert created["draft"]["rule"] == rule[1]
    assert created["draft"]["scope"] == "organization"
    assert program.json("policy", "show", name) == created

    changed = ("--mode", "enforcing", "--direction", "request", "--project", "Acme project")
    edited = program.json(
        *("policy", "edit", name, "--revision", "1", *changed),
        *("--threshold", "7000", "--description", "For all.", "--name", f"{name}!"),
    )
    assert (edited["name"], edited["description"]) == (f"{name}!", "For all.")
    assert edited["draft"] == {
        "rule": rule[1],
        "direction": "request",
        "mode": "enforcing",
        "scope": "projects",
        "project_ids": [str(tenant.project_id)],
        "match_threshold_basis_points": 7000,
        "base_version": 0,
    }
    line = ("policy", "edit", f"{name}!", "--revision", "2")
    edited = program.json(*line, "--threshold", "default", "--scope", "organization")
    assert edited["draft"]["match_threshold_basis_points"] is None
    assert (edited["draft"]["scope"], edited["revision"]) == ("organization", 3)
    assert "revision 3, not 2" in program.refusal(*line, "--mode", "monitoring")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rule", "It is rude."), "A rule is a yes-or-no question and ends with '?'."),
        (("--rule", "Is it rude?", "--description", "d" * 241), "description"),
        (("--rule", "Is it rude?", "--project", "nowhere"), "There is no project nowhere."),
    ],
)
def test_a_policy_that_cannot_be_created(
    program: Program, tenant: Tenant, options: tuple[str, ...], said: str
) -> None:
    line = ("policy", "create", str(tenant.organization_id), "No rudeness", *options)
    assert said in program.refusal(*line)
    assert program.json("policy", "list", str(tenant.organization_id)) == {"data": []}


def test_a_threshold_is_a_percentage_or_basis_points(program: Program, tenant: Tenant) -> None:
    line = ("policy", "create", str(tenant.organization_id), "No rudeness", "--rule", "Is it rude?")
    for wrong in ("10000", "0", "high", "0%", "100%", "1.234%"):
        outcome = program.run(*line, "--threshold", wrong)
        assert outcome.code == 2
        assert "neither a percentage" in outcome.err
    found = program.json(*line, "--threshold", "57.5%")
    assert found["draft"]["match_threshold_basis_points"] == 5750


async def test_a_policy_applies_to_projects_of_its_own_organization(
    program: Program, gateway: Gateway, tenant: Tenant
) -> None:
    stranger = await gateway.make_tenant()
    line = ("policy", "create", str(tenant.organization_id), "p", "--rule", "Is it rude?")
    refusal = program.refusal(*line, "--project", str(stranger.project_id))
    assert "is not a project of the organization" in refusal
    assert "There is no organization" in program.refusal(
        "policy", "create", str(uuid4()), "p", "--rule", "Is it rude?"
    )


def test_an_edit_changes_something(program: Program, draft: dict[str, Any]) -> None:
    outcome = program.run("policy", "edit", draft["id"], "--revision", "1")
    assert (outcome.code, "a field to change" in outcome.err) == (2, True)


def test_published_paused_and_resumed_by_revision(program: Program, draft: dict[str, Any]) -> None:
    policy = draft["id"]
    published = program.json("policy", "publish", policy, "--revision", "1")
    assert (published["state"], published["revision"]) == ("enforcing", 2)
    assert published["current_version"] == 1
    stale = program.refusal("policy", "pause", policy, "--revision", "1")
    assert stale == "The policy is at revision 2, not 1: read it again."
    paused = program.json("policy", "pause", policy, "--revision", "2")
    assert (paused["state"], paused["revision"]) == ("paused", 3)
    resumed = program.json("policy", "resume", policy, "--revision", "3")
    assert (resumed["state"], resumed["revision"]) == ("enforcing", 4)
    refusal = program.refusal("policy", "resume", policy, "--revision", "4")
    assert refusal == "Only a paused policy can be resumed."


def test_unknown_is_refused(program: Program) -> None:
    unknown = str(uuid4())
    assert program.refusal("policy", "list", unknown) == f"There is no organization {unknown}."
    assert program.refusal("policy", "show", "pol_none") == "There is no policy pol_none."
    for verb in ("publish", "pause", "resume"):
        refusal = program.refusal("policy", verb, "pol_none", "--revision", "1")
        assert refusal == "There is no policy pol_none."


def _judged(program: Program, judge: ScriptedJudge, folder: Path) -> Program:
    config = folder / "judged.toml"
    more = f"""
[[backends]]
name = "judge"
kind = "openai"
urls = ["{judge.url}"]
[judge]
backend = "judge"
model = "m"
"""
    config.write_text(program.config.read_text() + more)
    return program.with_config(config)


async def test_a_file_that_cannot_calibrate_stores_nothing(
    program: Program, tenant: Tenant, tmp_path: Path
) -> None:
    name, file = f"Bombs {uuid4().hex}", tmp_path / "labelled.csv"
    fine = [f"{number},{'yes' if number % 2 else 'no'}" for number in range(12)]
    wrong = {
        "'maybe' is no label": [*fine, "another,maybe"],
        "texts with both labels": [f"{number},no" for number in range(12)],
        "at least 10 labelled texts, and there are 9": fine[:9],
        "Line 14 of the file: it repeats line 2": [*fine, "0,no"],
        "Line 14 of the file: the text is empty": [*fine, " ,yes"],
        "at most 32 MiB": None,
    }
    program.json("policy", "create", str(tenant.organization_id), name, "--rule", "Is it?")
    async with ScriptedJudge() as judge:
        judged = _judged(program, judge, tmp_path)
        for message, lines in wrong.items():
            file.write_text("\n".join(["text,label", *(lines or ())]))
            if lines is None:
                os.truncate(file, 100 << 20)
            line = ("policy", "try", "--policy", name, "--file", str(file), "--save")
            outcome = await asyncio.to_thread(judged.run, *line)
            assert outcome.code == 1
            assert message in " ".join(outcome.err.split())
    assert program.json("policy", "calibrations", name) == {"data": []}


async def test_a_calibration_is_fitted_stored_and_activated(
    program: Program, tenant: Tenant, tmp_path: Path
) -> None:
    name, labelled = f"Bombs {uuid4().hex}", tmp_path / "labelled.csv"
    # The judge is overconfident: its wrong answers have the same scores as its right answers.
    rows = [(number, number % 10 < 8) for number in range(40)]
    texts = [
        f"{number} {'bomb' if number % 2 == right else 'peace'},{'yes' if number % 2 else 'no'}"
        for number, right in rows
    ]
    labelled.write_text("\n".join(["text,label", *texts]))
    async with ScriptedJudge() as judge:
        judged = _judged(program, judge, tmp_path)

        async def json_of(*line: str) -> Any:
            return await asyncio.to_thread(judged.json, *line)

        rule = ("--rule", "Does it say bomb?")
        await json_of("policy", "create", str(tenant.organization_id), name, *rule)
        tried = await json_of(
            *("policy", "try", "--policy", name, "--file", str(labelled), "--save"),
            *("--false-denials", "10%", "--misses", "1%", "--confidence", "80%"),
        )
        shown = await asyncio.to_thread(
            judged.run,
            "policy",
            "try",
            *rule,
            "--file",
            str(labelled),
            "--calibrate",
            "--false-denials",
            "1%",
        )
    assert tried["fitted"]["labels"] == 40
    before, after = (tried["fitted"][when]["calibration_error"] for when in ("before", "after"))
    assert after < before
    assert tried["guarantees"]["misses"] == {
        "basis_points": None,
        "labels": 20,
        "labels_needed": 161,
    }
    assert tried["guarantees"]["false denials"]["labels_needed"] == 16
    assert "279 more texts labelled no are needed: there are 20, and 299 are needed" in shown.out
    assert "share of yes" in shown.out
    (stored,) = (await asyncio.to_thread(program.json, "policy", "calibrations", name))["data"]
    assert (stored["number"], stored["active"], stored["judge_model"]) == (1, False, "m")
    activated = program.json("policy", "calibrate", name, "1")
    assert activated["calibration"] == 1
    assert program.json("policy", "calibrations", name)["data"][0]["active"] is True
    assert program.json("policy", "calibrate", name, "0")["calibration"] is None
    assert "no calibration 2" in program.refusal("policy", "calibrate", name, "2")
