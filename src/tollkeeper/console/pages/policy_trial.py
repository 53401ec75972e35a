"""Tries a rule on sample texts before it becomes a policy. A rule is a yes-or-no question, and the
configured judge (a model) answers it. Saves the calibration that a trial with labelled texts
gives."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.action import Question
from tollkeeper.console.changes import answer_form, done
from tollkeeper.console.charts import threshold_chart
from tollkeeper.console.context import Console, console_of
from tollkeeper.console.forms import Form, Refused
from tollkeeper.console.rendering import render
from tollkeeper.core.errors import InvalidRequest, StateConflict, Unavailable
from tollkeeper.policies.calibration.rule import CONFIDENCE, LabelledScore, guarantees
from tollkeeper.policies.policy import Direction, JudgeFormat, Policy
from tollkeeper.policies.trial.labelled_texts import read_texts
from tollkeeper.policies.trial.rule import Sample, labelled, labelled_values, separate
from tollkeeper.policies.trial.service import PolicyTrial, Trial, TrialText
from tollkeeper.setup.services import Services, judge_format

# The number of texts is limited, because the user waits for the page. `tollkeeper policy try`
# accepts more texts.
_TEXTS_MAX = 200
_DEADLINE_S = 180
_PURPOSE = "policy trial"


@dataclass(frozen=True, slots=True)
class LabelledTrial:
    """Contains the part of a trial from which a calibration is fitted. The page has it as a signed
    field, so that the judge is not asked again when the operator saves the calibration."""

    rule: str
    direction: Direction
    judge: JudgeFormat
    scores: tuple[LabelledScore, ...]

    def trial(self) -> Trial:
        samples = tuple(Sample("", one.is_yes, None, one.score) for one in self.scores)
        return Trial(self.rule, self.direction, samples, missing_reason="")


async def show(
    request: Request,
    refused: Refused | None = None,
    *,
    trial: Trial | None = None,
    filled: Mapping[str, str] | None = None,
) -> Response:
    console = console_of(request)
    threshold = console.services.default_threshold
    samples = [] if trial is None else trial.samples
    points: dict[int, int] = {}
    for sample in samples:
        if sample.probability_basis_points is not None:
            probability = sample.probability_basis_points
            points[probability] = points.get(probability, 0) + 1
    fitted = _fitted(trial) if trial else None
    return render(
        request,
        "policy_trial.html",
        nav="policies",
        title="Try a rule",
        refused=refused,
        filled=filled,
        trial=trial,
        separation=None if trial is None else separate(trial.samples, threshold),
        threshold=threshold,
        chart=threshold_chart(
            sorted(points.items()), threshold, guarantees=_guarantees(trial) if trial else None
        ),
        fitted=fitted,
        signed_trial=_signed(console, trial)
        if trial and fitted
        else _signed_before(console, refused),
        judge=console.settings.judge,
        texts_max=_TEXTS_MAX,
        rule=request.query_params.get("rule", ""),
    )


def _guarantees(trial: Trial) -> list[tuple[float, float]] | None:
    values = labelled_values(trial.samples)
    return guarantees(*values, CONFIDENCE) if all(values) else None


def _fitted(trial: Trial) -> dict[str, Any] | None:
    """Fits a calibration to the labelled texts and returns its measurements; None if there are too
    few labels."""
    try:
        return trial.fitted().report()
    except InvalidRequest:
        return None


async def run(request: Request) -> Response:
    async def handle(form: Form) -> Response:
        console = console_of(request)
        open_judge = console.open_judge
        if open_judge is None:
            raise Unavailable("No judge is configured: the settings have no [judge].")
        rule = form.text("rule")
        direction = (
            Direction.RESPONSE if form.text("direction") == "response" else Direction.REQUEST
        )
        texts = await _texts(form)
        meter = console.services.judge_costs.note
        async with console.exclusive_run(_DEADLINE_S), open_judge(meter) as judge:
            trial = await PolicyTrial(judge).try_rule(rule, texts, direction=direction)
        return await show(request, trial=trial, filled=form.filled)

    return await answer_form(request, handle, show)


async def _texts(form: Form) -> list[TrialText]:
    uploaded = await form.file("file")
    texts = read_texts(uploaded) if uploaded.strip() else [TrialText(form.text("text"))]
    if not 1 <= len(texts) <= _TEXTS_MAX:
        raise InvalidRequest(f"Give 1 to {_TEXTS_MAX} texts.", param="file")
    return texts


async def save(request: Request) -> Response:
    console = console_of(request)
    services = console.services

    async def ask(form: Form) -> Question:
        tried = _labelled_trial(console, form)
        policy = await _policy(services, form, tried.rule)
        organization = await services.organizations.organization_show(policy.organization_id)
        fitted = tried.trial().fitted()
        before, after = (one.calibration_error for one in (fitted.before, fitted.after))
        return Question(
            f"Save a calibration of {policy.name}?",
            "The policy gets another calibration. Its values do not change until you select the "
            "calibration on the policy's page.",
            "Save calibration",
            facts={
                "Organization": organization.name,
                "Question": tried.rule,
                "Judge": tried.judge.model,
                "Labelled texts": fitted.labels,
                "Calibration error": f"{before:.1%} before, {after:.1%} after",
            },
        )

    async def handle(form: Form) -> Response:
        tried = _labelled_trial(console, form)
        policy = await _policy(services, form, tried.rule)
        trial = tried.trial()
        fitted = trial.fitted()
        await services.calibrations.calibration_create(
            policy.organization_id,
            policy.id,
            tried.rule,
            tried.judge,
            fitted,
            trial.calibration_report(fitted),
        )
        return done(
            *(request, f"/policies/{policy.id}"),
            "The calibration is saved. It has no effect until you select it.",
        )

    return await answer_form(request, handle, show, ask=ask, back="/policies/try")


async def _policy(services: Services, form: Form, rule: str) -> Policy:
    """Returns the policy that the form names. Raises StateConflict if the rule of the published version
    (or of the draft, if no version is published) is not `rule`, because a calibration is valid for one
    rule only."""
    policy_id = await services.names.policy_named(form.text("policy"))
    organization_id = await services.policies.policy_organization(policy_id)
    policy = await services.policies.policy_show(organization_id, policy_id)
    question = policy.current_rule.rule
    if question != rule:
        raise StateConflict(
            f"The policy {policy.name} has a different rule: {question!r}. Try that rule instead.",
            param="policy",
        )
    return policy


def _signed(console: Console, trial: Trial) -> str:
    judge = judge_format(console.settings)
    assert judge is not None, "the trial has asked a judge"
    content = LabelledTrial(trial.rule, trial.direction, judge, tuple(labelled(trial.samples)))
    return base64.b64encode(console.vault.sign(msgspec.json.encode(content), _PURPOSE)).decode()


def _signed_before(console: Console, refused: Refused | None) -> str | None:
    """Returns the signed trial of a rejected form, so that the operator can correct the form."""
    text = "" if refused is None else refused.filled.get("trial", "")
    return text if _verified(console, text) is not None else None


def _labelled_trial(console: Console, form: Form) -> LabelledTrial:
    content = _verified(console, form.text("trial"))
    if content is None:
        raise InvalidRequest(
            "The trial in the form was not signed by this console. Try the rule again.",
            param="trial",
        )
    return msgspec.json.decode(content, type=LabelledTrial)


def _verified(console: Console, text: str) -> bytes | None:
    try:
        signed = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return console.vault.verify(signed, _PURPOSE)
