"""`make judge`: measures a judge on labelled datasets, before and after calibration. Without `--config`
or `--weights`, the judge is the embedded engine with its packaged model.

Scores are kept in the data folder, so a run that was stopped goes on where it ended, and `--report`
prints what is there without asking."""

import argparse
import asyncio
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import structlog
from rich.console import Console
from rich.progress import Progress

from bench.judge.datasets import DATASETS, Case, sampled, weights
from bench.judge.report import Measured, draw, table
from tollkeeper.policies.judge.judge import Judge, Question
from tollkeeper.policies.judge.rule import prompt_format
from tollkeeper.policies.texts.transcript import section
from tollkeeper.setup import running_judge
from tollkeeper.setup.settings import Settings, load_settings

_WEIGHTS_NAME = "qwen2.5-1.5b-instruct"
_TEXTS = 150
_stderr = Console(stderr=True, highlight=False)


class ScoreFile:
    """The file with the scores. Each score is written as one line as soon as it is known."""

    def __init__(self, folder: Path, judge: str) -> None:
        name = judge.replace("/", "_")
        self._path = folder / f"scores-{name}-{prompt_format()}.jsonl"
        self._known: dict[str, float | None] = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                row = json.loads(line)
                self._known[row["key"]] = row["score"]

    def find(self, case: Case) -> float | None:
        return self._known.get(_key(case))

    def knows(self, case: Case) -> bool:
        return _key(case) in self._known

    def add(self, case: Case, score: float | None) -> None:
        self._known[_key(case)] = score
        with self._path.open("a") as file:
            file.write(json.dumps({"key": _key(case), "score": score}) + "\n")


def _key(case: Case) -> str:
    return hashlib.sha256(repr((case.rule, case.request, case.text)).encode()).hexdigest()


async def score(judge: Judge, cases: Sequence[Case], scores: ScoreFile, title: str) -> None:
    wanted = [case for case in cases if not scores.knows(case)]
    with Progress(console=_stderr, transient=True) as progress:
        bar = progress.add_task(title, total=len(wanted))
        for case in wanted:
            text = case.text if case.request else section("user", case.text)
            context = section("user", case.request) if case.request else ""
            (opinion,) = await judge.ask_all(
                text, [Question(_key(case), case.rule)], context=context
            )
            scores.add(case, opinion.score if opinion.complete else None)
            progress.advance(bar)


async def score_all(settings: Settings, samples: dict[str, list[Case]], scores: ScoreFile) -> None:
    async with running_judge(settings) as judge:
        for name, cases in samples.items():
            await score(judge, cases, scores, DATASETS[name].title)


def settings_of(options: argparse.Namespace, folder: str) -> Settings:
    os.environ.setdefault("TOLLKEEPER_JUDGE__DEADLINE_S", "3600")
    if options.config is None:
        os.environ["TOLLKEEPER_DATABASE__DATA_DIR"] = folder
    if options.weights:
        os.environ["TOLLKEEPER_EMBEDDED__MODEL_PATH"] = str(weights(options.data))
        os.environ["TOLLKEEPER_JUDGE__MODEL"] = _WEIGHTS_NAME
    return load_settings(options.config)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.judge", description=__doc__)
    parser.add_argument("--config", type=Path, help="settings whose [judge] is measured")
    parser.add_argument("--weights", action="store_true", help="measure the 1.5B model of packages")
    parser.add_argument("--dataset", choices=DATASETS, action="append")
    parser.add_argument("--texts", type=int, default=_TEXTS, help="texts of each dataset")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path(".judge"), help="packages and scores")
    parser.add_argument("--report", action="store_true", help="only print what is measured")
    parser.add_argument("--svg", type=Path, help="write the reliability plots to this file")
    options = parser.parse_args()
    options.data.mkdir(exist_ok=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    samples = {
        name: sampled(name, options.data, texts=options.texts, seed=options.seed)
        for name in options.dataset or DATASETS
    }
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        settings = settings_of(options, folder)
        assert settings.judge is not None
        scores = ScoreFile(options.data, settings.judge.model)
        if not options.report:
            asyncio.run(score_all(settings, samples, scores))
    measured = [
        Measured(settings.judge.model, name, [(case, scores.find(case)) for case in cases])
        for name, cases in samples.items()
    ]
    print(table(measured, seed=options.seed))
    if options.svg:
        options.svg.write_text(draw(measured))


if __name__ == "__main__":
    main()
