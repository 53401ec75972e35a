"""`python -m bench.judge [--config FILE]`: accuracy and AUC of the configured judge, with and without
the worked examples in its prompt. Without a file, the embedded engine is measured."""

import argparse
import asyncio
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from rich.console import Console
from rich.progress import Progress

from tollkeeper.bootstrap import running_judge
from tollkeeper.domain.judging import EXAMPLES, Example
from tollkeeper.domain.transcript import section
from tollkeeper.domain.trial import Sample, separate
from tollkeeper.services.policies.judge import Judge, Question
from tollkeeper.settings import Settings, load_settings

_HERE = Path(__file__).parent
_MIDDLE = 5000
_PROMPTS: dict[str, tuple[Example, ...]] = {"plain": (), "few-shot": EXAMPLES}
_stderr = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    rule: str
    text: str
    label: bool
    # "yes", "hard" (the answer is no, but the text is on the rule's topic), or "easy" (no, off topic).
    kind: str


@dataclass(frozen=True, slots=True)
class Rated:
    case: Case
    probability: int | None
    seconds: float


def read_cases() -> list[Case]:
    rules: dict[str, str] = json.loads((_HERE / "rules.json").read_text())
    return [
        Case(name, rule, **json.loads(line))
        for name, rule in rules.items()
        for line in (_HERE / "cases" / f"{name}.jsonl").read_text().splitlines()
    ]


async def rate(judge: Judge, cases: Sequence[Case], title: str) -> list[Rated]:
    rated = []
    with Progress(console=_stderr, transient=True) as progress:
        bar = progress.add_task(title, total=len(cases))
        for case in cases:
            started = time.perf_counter()
            transcript = section("user", case.text)
            (opinion,) = await judge.ask_all(
                transcript, [Question(f"{title} {case.name}", case.rule)]
            )
            seconds = time.perf_counter() - started
            rated.append(Rated(case, opinion.basis_points if opinion.complete else None, seconds))
            progress.advance(bar)
    return rated


def auc(rated: Iterable[Rated]) -> float | None:
    samples = [Sample(one.case.text, one.case.label, one.probability) for one in rated]
    calibration = separate(samples)
    return None if calibration is None else calibration.auc


def summary(rated: Sequence[Rated]) -> dict[str, object]:
    known = [one for one in rated if one.probability is not None]
    matched = [(one.probability or 0) >= _MIDDLE for one in known]
    correct = [match == one.case.label for match, one in zip(matched, known, strict=True)]
    by_rule = {
        name: [one for one in known if one.case.name == name]
        for name in dict.fromkeys(one.case.name for one in rated)
    }
    calibrated = separate([Sample(one.case.text, one.case.label, one.probability) for one in known])
    best = None if calibrated is None else calibrated.suggested
    return {
        "cases": len(rated),
        "missing": len(rated) - len(known),
        "accuracy at 5000": _round(statistics.fmean(correct)) if correct else None,
        "AUC": _round(auc(known)),
        "AUC, on-topic negatives": _round(auc(one for one in known if one.case.kind != "easy")),
        "AUC, off-topic negatives": _round(auc(one for one in known if one.case.kind != "hard")),
        "AUC within a rule, mean": _round(
            statistics.fmean(area for of in by_rule.values() if (area := auc(of)) is not None)
        ),
        "best threshold for all": best and best.threshold_basis_points,
        "accuracy there": _round(None if best is None else best.accuracy),
        "by rule": {name: _round(auc(of)) for name, of in by_rule.items()},
        "median seconds": _round(statistics.median(one.seconds for one in rated)),
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


async def measure(settings: Settings, prompts: Sequence[str]) -> dict[str, object]:
    cases = read_cases()
    summaries: dict[str, object] = {}
    for prompt in prompts:
        async with running_judge(settings, _PROMPTS[prompt]) as judge:
            summaries[prompt] = summary(await rate(judge, cases, prompt))
    return summaries


def settings_of(config: Path | None, folder: str) -> Settings:
    os.environ.setdefault("TOLLKEEPER_JUDGE__DEADLINE_S", "600")
    if config is None:
        os.environ["TOLLKEEPER_DATABASE__DATA_DIR"] = folder
    return load_settings(config)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.judge", description=__doc__)
    parser.add_argument("--config", type=Path, help="settings whose [judge] is measured")
    parser.add_argument("--prompt", choices=_PROMPTS, action="append")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        settings = settings_of(options.config, folder)
        summaries = asyncio.run(measure(settings, options.prompt or list(_PROMPTS)))
    print(json.dumps(summaries, indent=2))


if __name__ == "__main__":
    main()
