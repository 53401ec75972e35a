"""`tollkeeper policy try`: reports the judge's scores or calibrated probabilities for texts."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from tollkeeper.core.percent import BASIS_POINTS, percent_of
from tollkeeper.entry.commands.output import printable
from tollkeeper.entry.commands.report import Report
from tollkeeper.policies.calibration.rule import (
    CONFIDENCE,
    Fitted,
    Quality,
    Threshold,
    threshold_for_false_denials,
    threshold_for_misses,
)
from tollkeeper.policies.policy import Direction
from tollkeeper.policies.trial.rule import Bin, Cut, Sample, Separation, labelled_values, separate
from tollkeeper.policies.trial.service import PolicyTrial, Trial, TrialText
from tollkeeper.setup import running_judge
from tollkeeper.setup.settings import JudgeSettings, Settings, SettingsError

# With more texts, there's no table of them.
_SHOWN_MAX = 40
# Of each text in the table, in characters.
_SHOWN_LENGTH = 70
# With fewer texts, no progress bar.
_PROGRESS_FROM = 10
# In characters.
_BAR_WIDTH = 40

_stderr = Console(stderr=True, highlight=False)


class TrialDirection(StrEnum):
    """What the judge reads a text as."""

    REQUEST = "request"
    RESPONSE = "response"


@dataclass(frozen=True, slots=True)
class ReportOptions:
    # In basis points. None: the settings' default.
    threshold: int | None = None
    # Highest accepted shares of texts labelled no that match, and (misses) labelled yes that
    # don't. Each gets a threshold in the report.
    false_denials: float | None = None
    misses: float | None = None
    confidence: float = CONFIDENCE
    # The threshold for `misses` is then one for `settles_below_basis_points`.
    from_first_judge: bool = False


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
    judge_settings = _judge_settings(settings)
    kinds = {backend.name: backend.kind for backend in settings.backends}
    if kinds[judge_settings.backend] == "embedded" and not quiet:
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


def first_judge_settings(settings: Settings) -> Settings:
    """With `judge.first` in place of the judge."""
    judge_settings = _judge_settings(settings)
    if not judge_settings.first.backend:
        raise SettingsError("judge.first: no first judge is configured.")
    first = {"backend": judge_settings.first.backend, "model": judge_settings.first.model}
    return settings.model_copy(update={"judge": judge_settings.model_copy(update=first)})


def trial_report(
    trial: Trial, settings: Settings, options: ReportOptions, fitted: Fitted | None
) -> Report:
    """With `fitted`, the trial has calibrated probabilities."""
    judge_settings = _judge_settings(settings)
    threshold = options.threshold or judge_settings.default_threshold_basis_points
    separation = separate(trial.samples, threshold)
    guarantees = _guarantees(trial, options)
    content = {
        "rule": trial.rule,
        "direction": trial.direction.value,
        "judge": {"backend": judge_settings.backend, "model": judge_settings.model},
        "threshold_basis_points": threshold,
        "data": [_sample_view(sample, threshold) for sample in trial.samples],
        "missing": sum(sample.probability_basis_points is None for sample in trial.samples),
        "histogram": [asdict(score_bin) for score_bin in trial.histogram],
        "calibration": None if separation is None else _separation_view(separation),
        "fitted": None if fitted is None else fitted.report(),
        "guarantees": {
            kind: msgspec.to_builtins(guarantee) for kind, guarantee in guarantees.items()
        },
    }
    parts = _picture(trial, separation, threshold, "score" if fitted is None else "probability")
    if fitted is not None:
        parts += [_reliability(fitted.after), Text(_improvement(fitted))]
    parts += [
        Text(_guarantee_text(kind, guarantee, options, trial))
        for kind, guarantee in guarantees.items()
    ]
    return Report(content, Group(*parts))


def _guarantees(trial: Trial, options: ReportOptions) -> dict[str, Threshold]:
    """For each kind of error that the options limit."""
    matching, passing = labelled_values(trial.samples)
    guarantees = {}
    if options.false_denials is not None:
        guarantees["false denials"] = threshold_for_false_denials(
            passing, options.false_denials, options.confidence
        )
    if options.misses is not None:
        guarantees["misses"] = threshold_for_misses(matching, options.misses, options.confidence)
    return guarantees


def _guarantee_text(kind: str, guarantee: Threshold, options: ReportOptions, trial: Trial) -> str:
    rate = options.false_denials if kind == "false denials" else options.misses
    by = " by the first judge" if options.from_first_judge else ""
    promise = f"at most {rate:.2%} {kind}{by}, with {options.confidence:.0%} confidence"
    if guarantee.basis_points is None:
        label = "no" if kind == "false denials" else "yes"
        more = guarantee.labels_needed - guarantee.labels
        return (
            f"For {promise}, {more} more texts labelled {label} are needed: there are "
            f"{guarantee.labels}, and {guarantee.labels_needed} are needed."
        )
    if not 0 < guarantee.basis_points < BASIS_POINTS:
        return f"No threshold gives {promise}: the judge's values do not separate yes from no."
    if options.from_first_judge:
        values = [sample.probability_basis_points for sample in trial.samples]
        decided = sum(value is not None and value < guarantee.basis_points for value in values)
        return (
            f"settles_below_basis_points = {guarantee.basis_points}: {promise}. With this setting, the "
            f"first judge decides {decided} of these {len(values)} texts by itself."
        )
    range_end = "or higher" if kind == "false denials" else "or lower"
    return f"A threshold of {percent_of(guarantee.basis_points)} {range_end}: {promise}."


def _improvement(fitted: Fitted) -> str:
    before, after = fitted.before, fitted.after
    return (
        f"Calibrated with {fitted.labels} labels ({fitted.calibration.shape.value}). On texts that were "
        f"not used to fit: calibration error {before.calibration_error:.3f} before, "
        f"{after.calibration_error:.3f} after; Brier score {before.brier:.3f} before, "
        f"{after.brier:.3f} after."
    )


def _reliability(quality: Quality) -> Table:
    """A bar per tenth of the probability scale: the share of texts labelled yes. A dot marks their
    mean probability; with a well calibrated judge it's at the bar's end."""
    table = Table("probability", "texts", "share of yes", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[1].justify = "right"
    for number, tenth in enumerate(quality.bins):
        if tenth is None:
            continue
        filled = round(tenth.yes_share * _BAR_WIDTH)
        expected = min(round(tenth.mean_probability * _BAR_WIDTH), _BAR_WIDTH - 1)
        bar = ("█" * filled).ljust(_BAR_WIDTH)
        table.add_row(
            f"{number * 10} to {number * 10 + 10} %",
            str(tenth.count),
            bar[:expected] + "●" + bar[expected + 1 :].rstrip(),
        )
    return table


def _sample_view(sample: Sample, threshold: int) -> dict[str, Any]:
    return {**asdict(sample), "matched": _matched(sample, threshold)}


def _matched(sample: Sample, threshold: int) -> bool | None:
    """None if the judge gave no score."""
    probability = sample.probability_basis_points
    return None if probability is None else probability >= threshold


def _separation_view(separation: Separation) -> dict[str, Any]:
    return {
        "auc": round(separation.auc, 4),
        "suggested_threshold_basis_points": separation.suggested.threshold_basis_points,
        "thresholds": [_cut_view(cut) for cut in separation.cuts],
    }


def _cut_view(cut: Cut) -> dict[str, Any]:
    shares = ("precision", "recall", "f1", "accuracy")
    return {**asdict(cut), **{share: round(getattr(cut, share), 4) for share in shares}}


def _picture(
    trial: Trial, separation: Separation | None, threshold: int, value: str
) -> list[RenderableType]:
    """`value` is "score", or "probability" if calibrated."""
    parts: list[RenderableType] = []
    if len(trial.samples) <= _SHOWN_MAX:
        parts.append(_samples_table(trial.samples, threshold, value))
    parts.append(_histogram(trial.histogram, value))
    if separation is not None:
        parts.append(_separation_table(separation, threshold))
        parts.append(_suggestion(separation))
    if trial.missing_reason:
        parts.append(
            Text(f"Some texts could not be judged: {trial.missing_reason}", style="yellow")
        )
    return parts


def _samples_table(samples: Sequence[Sample], threshold: int, value: str) -> Table:
    table = Table(value, "match", "label", "text", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].justify = "right"
    words = {True: "yes", False: "no", None: "-"}
    for sample in samples:
        probability = sample.probability_basis_points
        shown_text = printable(sample.text[:_SHOWN_LENGTH])
        table.add_row(
            "-" if probability is None else percent_of(probability),
            words[_matched(sample, threshold)],
            words[sample.label],
            Text(shown_text + ("…" if len(sample.text) > _SHOWN_LENGTH else "")),
        )
    return table


def _histogram(bins: Sequence[Bin], value: str) -> Table:
    """A bar per bin, coloured by label."""
    highest = max(score_bin.count for score_bin in bins)
    table = Table(f"{value} from", "texts", "", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].justify = table.columns[1].justify = "right"
    for score_bin in bins:
        bar = Text()
        for count, style in (
            (score_bin.yes, "green"),
            (score_bin.no, "red"),
            (score_bin.unlabelled, "cyan"),
        ):
            # Rounded up, so even one text is visible.
            bar.append("█" * -(-count * _BAR_WIDTH // max(highest, 1)), style=style)
        table.add_row(percent_of(score_bin.start_basis_points), str(score_bin.count), bar)
    if any(score_bin.yes or score_bin.no for score_bin in bins):
        table.caption = "green: labelled yes, red: labelled no"
    return table


def _separation_table(separation: Separation, threshold: int) -> Table:
    table = Table(
        *("threshold", "precision", "recall", "F1", "accuracy", "note"),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for cut in separation.cuts:
        at = cut.threshold_basis_points
        notes = ["suggested"] if at == separation.suggested.threshold_basis_points else []
        notes += ["in use"] if at == threshold else []
        shares = (cut.precision, cut.recall, cut.f1, cut.accuracy)
        table.add_row(percent_of(at), *(f"{share:.2f}" for share in shares), ", ".join(notes))
    return table


def _suggestion(separation: Separation) -> Text:
    best = separation.suggested
    return Text(
        f"Suggested threshold: {percent_of(best.threshold_basis_points)} (F1 {best.f1:.2f}, "
        f"precision {best.precision:.2f}, recall {best.recall:.2f}; AUC {separation.auc:.2f})."
    )
