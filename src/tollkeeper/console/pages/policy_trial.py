"""Tries a rule on sample texts before it becomes a policy. A rule is a yes-or-no question, and the
configured judge (a model) answers it."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.changes import answer_form
from tollkeeper.console.charts import threshold_chart
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import Form, Refused
from tollkeeper.console.rendering import render
from tollkeeper.domain.calibration import CONFIDENCE, guarantees
from tollkeeper.domain.errors import InvalidRequest, Unavailable
from tollkeeper.domain.policy import Direction
from tollkeeper.domain.trial import labelled_values, separate
from tollkeeper.services.policies.labelled_texts import read_texts
from tollkeeper.services.policies.trial import PolicyTrial, Trial, TrialText

# The number of texts is limited, because the user waits for the page. `tollkeeper policy try`
# accepts more texts.
_TEXTS_MAX = 200
_DEADLINE_S = 180


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
        fitted=_fitted(trial) if trial else None,
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
        async with console.exclusive_run(_DEADLINE_S), open_judge() as judge:
            judge.meter = console.services.judge_costs.note
            trial = await PolicyTrial(judge).try_rule(rule, texts, direction=direction)
        return await show(request, trial=trial, filled=form.filled)

    return await answer_form(request, handle, show)


async def _texts(form: Form) -> list[TrialText]:
    uploaded = await form.file("file")
    texts = read_texts(uploaded) if uploaded.strip() else [TrialText(form.text("text"))]
    if not 1 <= len(texts) <= _TEXTS_MAX:
        raise InvalidRequest(f"Give 1 to {_TEXTS_MAX} texts.", param="file")
    return texts
