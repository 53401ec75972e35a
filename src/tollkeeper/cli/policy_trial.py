"""`tollkeeper policy try`: reads the texts, asks the judge and makes the report."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from tollkeeper.bootstrap import running_judge
from tollkeeper.cli.output import printable
from tollkeeper.cli.report import Report
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.policy import Direction
from tollkeeper.domain.trial import Bin, Calibration, Cut, Sample, calibrate
from tollkeeper.services.policies.trial import TEXTS_MAX, PolicyTrial, Trial, TrialText
from tollkeeper.settings import JudgeSettings, Settings, SettingsError

# Up to this many texts are listed. Of more texts only the histogram is shown.
_SHOWN_MAX = 40
_SHOWN_LENGTH = 70
# A progress bar is shown from this many texts on.
_PROGRESS_FROM = 10
_BAR_WIDTH = 40

_stderr = Console(stderr=True, highlight=False)


class TrialDirection(StrEnum):
    """Whether the judge is shown a text as a request or as an answer."""

    REQUEST = "request"
    RESPONSE = "response"


class _Line(msgspec.Struct):
    text: str
    label: bool | None = None


_line = msgspec.json.Decoder(_Line)


def read_texts(file: Path) -> list[TrialText]:
    """Reads a JSONL file. Other fields of a line are ignored."""
    texts: list[TrialText] = []
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if len(texts) == TEXTS_MAX:
                raise InvalidRequest(f"{file}: more than {TEXTS_MAX} texts.")
            try:
                entry = _line.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                raise InvalidRequest(f"{file}, line {number}: {exc}.") from exc
            texts.append(TrialText(entry.text, entry.label))
    return texts


def run_trial(
    settings: Settings,
    rule: str,
    texts: Sequence[TrialText],
    direction: TrialDirection,
    *,
    quiet: bool,
) -> Trial:
    return asyncio.run(_run(settings, rule, texts, Direction(direction.value), quiet))


async def _run(
    settings: Settings, rule: str, texts: Sequence[TrialText], direction: Direction, quiet: bool
) -> Trial:
    declared = _judge_settings(settings)
    kinds = {backend.name: backend.kind for backend in settings.backends}
    if kinds[declared.backend] == "embedded" and not quiet:
        _stderr.print("Starting the local engine for this trial ...")
    async with running_judge(settings) as judge:
        with Progress(
            console=_stderr, transient=True, disable=quiet or len(texts) < _PROGRESS_FROM
        ) as progress:
            bar = progress.add_task("Asking the judge", total=len(texts))
            return await PolicyTrial(judge).try_rule(
                rule,
                texts,
                direction=direction,
                on_progress=lambda done: progress.update(bar, completed=done),
            )


def _judge_settings(settings: Settings) -> JudgeSettings:
    if settings.judge is None:
        raise SettingsError("judge: no judge is configured.")
    return settings.judge


def trial_report(trial: Trial, settings: Settings, threshold: int | None) -> Report:
    declared = _judge_settings(settings)
    threshold = threshold or declared.default_threshold_basis_points
    calibration = calibrate(trial.samples, threshold)
    content = {
        "rule": trial.rule,
        "direction": trial.direction.value,
        "judge": {"backend": declared.backend, "model": declared.model},
        "threshold_basis_points": threshold,
        "data": [_sample_view(sample, threshold) for sample in trial.samples],
        "missing": sum(sample.probability_basis_points is None for sample in trial.samples),
        "histogram": [asdict(one) for one in trial.histogram],
        "calibration": None if calibration is None else _calibration_view(calibration),
    }
    return Report(content, _picture(trial, calibration, threshold))


def _sample_view(sample: Sample, threshold: int) -> dict[str, Any]:
    return {**asdict(sample), "matched": _matched(sample, threshold)}


def _matched(sample: Sample, threshold: int) -> bool | None:
    probability = sample.probability_basis_points
    return None if probability is None else probability >= threshold


def _calibration_view(calibration: Calibration) -> dict[str, Any]:
    return {
        "auc": round(calibration.auc, 4),
        "suggested_threshold_basis_points": calibration.suggested.threshold_basis_points,
        "thresholds": [_cut_view(cut) for cut in calibration.cuts],
    }


def _cut_view(cut: Cut) -> dict[str, Any]:
    shares = ("precision", "recall", "f1", "accuracy")
    return {**asdict(cut), **{share: round(getattr(cut, share), 4) for share in shares}}


def _picture(trial: Trial, calibration: Calibration | None, threshold: int) -> RenderableType:
    parts: list[RenderableType] = []
    if len(trial.samples) <= _SHOWN_MAX:
        parts.append(_samples_table(trial.samples, threshold))
    parts.append(_histogram(trial.histogram))
    if calibration is not None:
        parts.append(_calibration_table(calibration, threshold))
        parts.append(_suggestion(calibration))
    if trial.missing_reason:
        parts.append(
            Text(f"Some texts could not be judged: {trial.missing_reason}", style="yellow")
        )
    return Group(*parts)


def _samples_table(samples: Sequence[Sample], threshold: int) -> Table:
    table = Table("probability", "match", "label", "text", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].justify = "right"
    words = {True: "yes", False: "no", None: "-"}
    for sample in samples:
        probability = sample.probability_basis_points
        shown = printable(sample.text[:_SHOWN_LENGTH])
        table.add_row(
            "-" if probability is None else str(probability),
            words[_matched(sample, threshold)],
            words[sample.label],
            Text(shown + ("…" if len(sample.text) > _SHOWN_LENGTH else "")),
        )
    return table


def _histogram(bins: Sequence[Bin]) -> Table:
    """One bar per bin, in a colour for each label: yes, no, and none."""
    highest = max(one.count for one in bins)
    table = Table("from", "texts", "", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].justify = table.columns[1].justify = "right"
    for one in bins:
        bar = Text()
        for count, style in ((one.yes, "green"), (one.no, "red"), (one.unlabelled, "cyan")):
            # Rounded up, so that even a single text is visible.
            bar.append("█" * -(-count * _BAR_WIDTH // max(highest, 1)), style=style)
        table.add_row(str(one.start_basis_points), str(one.count), bar)
    if any(one.yes or one.no for one in bins):
        table.caption = "green: labelled yes, red: labelled no"
    return table


def _calibration_table(calibration: Calibration, threshold: int) -> Table:
    table = Table(
        *("threshold", "precision", "recall", "F1", "accuracy", ""),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for cut in calibration.cuts:
        at = cut.threshold_basis_points
        notes = ["suggested"] if at == calibration.suggested.threshold_basis_points else []
        notes += ["in use"] if at == threshold else []
        shares = (cut.precision, cut.recall, cut.f1, cut.accuracy)
        table.add_row(str(at), *(f"{share:.2f}" for share in shares), ", ".join(notes))
    return table


def _suggestion(calibration: Calibration) -> Text:
    best = calibration.suggested
    return Text(
        f"Suggested threshold: {best.threshold_basis_points} basis points (F1 {best.f1:.2f}, "
        f"precision {best.precision:.2f}, recall {best.recall:.2f}; AUC {calibration.auc:.2f})."
    )
