"""Tests trials of rules: the statistics, the service, and the command `tollkeeper policy try`."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.judged_gateway import LIKELY, UNLIKELY, ScriptedJudge
from tests.support.program import Outcome, Program, write_config
from tests.support.tables import each
from tests.support.upstream import reset_before_headers
from tollkeeper.core.errors import InvalidRequest, Unavailable
from tollkeeper.policies.policy import Direction
from tollkeeper.policies.trial.rule import Sample, histogram, separate
from tollkeeper.policies.trial.service import PolicyTrial, TrialText
from tollkeeper.setup import running_judge
from tollkeeper.setup.settings import Settings, SettingsError


def _samples(*rated: tuple[int | None, bool | None]) -> list[Sample]:
    return [Sample("text", label, probability) for probability, label in rated]


def test_a_histogram_has_ten_bins() -> None:
    samples = _samples(
        *((0, True), (999, False), (1000, None), (9999, True), (10_000, True), (None, True))
    )
    found = histogram(samples)
    assert [bin_.start_basis_points for bin_ in found] == list(range(0, 10_000, 1000))
    assert [(bin_.yes, bin_.no, bin_.unlabelled) for bin_ in (found[0], found[1], found[9])] == [
        (1, 1, 0),
        (0, 0, 1),
        (2, 0, 0),
    ]
    assert sum(bin_.count for bin_ in found) == 5


def test_the_suggested_threshold_lies_between_what_it_parts() -> None:
    found = separate(_samples((9000, True), (8000, True), (3000, False), (1000, False)), 5000)
    assert found is not None
    assert found.suggested.threshold_basis_points == 5500
    best = found.suggested
    assert (best.precision, best.recall, best.f1, best.accuracy) == (1.0, 1.0, 1.0, 1.0)
    assert found.auc == 1.0
    thresholds = [cut.threshold_basis_points for cut in found.cuts]
    assert thresholds == sorted({*range(1000, 10_000, 1000), 5000, 5500})


def test_equal_f1_goes_to_the_higher_precision() -> None:
    # No other threshold has a higher F1, or the same F1 with a higher precision.
    found = separate(_samples((10, False), (4, False), (8, True), (2, True), (12, True)))
    assert found is not None
    best = found.suggested
    assert all(
        (cut.f1, cut.precision) <= (best.f1, best.precision) or cut.f1 < best.f1
        for cut in found.cuts
    )


@each("samples", [_samples((1, None)), _samples((1, True)), _samples((1, False), (None, True))])
def test_without_both_labels_there_is_nothing_to_calibrate(samples: list[Sample]) -> None:
    assert separate(samples) is None


_RATED = st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), min_size=2, max_size=30)


@given(_RATED)
def test_no_threshold_is_better_than_the_suggested_one(rated: list[tuple[int, bool]]) -> None:
    found = separate(_samples(*rated))
    if found is None:
        assert len({label for _, label in rated}) == 1
        return
    best = found.suggested

    def scored(threshold: int) -> tuple[float, float]:
        matched = [label for probability, label in rated if probability >= threshold]
        right, wanted = sum(matched), sum(label for _, label in rated)
        f1 = 2 * right / (len(matched) + wanted)
        return f1, right / len(matched) if matched else 1.0

    tried = {*(probability for probability, _ in rated), *range(1, 10_000, 97), 1, 9999}
    candidates = [threshold for threshold in tried if 1 <= threshold <= 9999]
    assert scored(best.threshold_basis_points) == pytest.approx((best.f1, best.precision))
    assert max(map(scored, candidates)) <= (best.f1 + 1e-9, 1.0)
    wins = [
        (yes > no) + (yes == no) / 2 for yes, ok in rated if ok for no, other in rated if not other
    ]
    assert found.auc == pytest.approx(sum(wins) / len(wins))


@pytest.fixture
async def judge() -> AsyncIterator[ScriptedJudge]:
    async with ScriptedJudge() as scripted:
        yield scripted


def _settings(data_dir: Path, judge: ScriptedJudge) -> Settings:
    return Settings.model_validate(
        {
            "database": {"data_dir": data_dir},
            "backends": [
                {"name": "judge", "kind": "openai", "urls": [judge.url], "retries": 0},
                # The secret of this backend is not set, and a trial does not need it.
                {
                    "name": "other",
                    "kind": "openai",
                    "urls": ["http://127.0.0.1:9/v1"],
                    "api_key_env": "NOT_SET_ANYWHERE",
                },
            ],
            "judge": {"backend": "judge", "model": "m", "concurrency": 4, "deadline_s": 5},
        }
    )


async def test_texts_are_asked_about_as_they_would_be_at_work(
    data_dir: Path, judge: ScriptedJudge
) -> None:
    async with running_judge(_settings(data_dir, judge)) as running:
        trial = PolicyTrial(running)
        texts = [TrialText("a bomb", True), TrialText("peace", False), TrialText("a bomb", None)]
        progress: list[int] = []
        found = await trial.try_rule("Does it say bomb?", texts, on_progress=progress.append)
        await trial.try_rule("Does it say bomb?", texts[1:2], direction=Direction.RESPONSE)
    assert [sample.probability_basis_points for sample in found.samples] == [
        LIKELY,
        UNLIKELY,
        LIKELY,
    ]
    assert [sample.label for sample in found.samples] == [True, False, None]
    assert progress == [1, 2, 3]
    assert sorted(set(judge.texts)) == ["[user]\na bomb", "[user]\npeace", "peace"]
    assert separate(found.samples) is not None


async def test_escapes_are_decoded_as_they_would_be_at_work(
    data_dir: Path, judge: ScriptedJudge
) -> None:
    async with running_judge(_settings(data_dir, judge)) as running:
        for direction in (Direction.REQUEST, Direction.RESPONSE):
            texts = [TrialText("b\\u006fmb", None)]
            await PolicyTrial(running).try_rule("Is it?", texts, direction=direction)
    assert sorted(judge.texts) == ["[user]\nb\\u006fmb\nbomb", "b\\u006fmb\nbomb"]


async def test_many_texts_are_asked_about_within_the_judges_bound(
    data_dir: Path, judge: ScriptedJudge
) -> None:
    async with running_judge(_settings(data_dir, judge)) as running:
        texts = [TrialText(f"{number} bomb" if number % 3 else f"{number}") for number in range(90)]
        found = await PolicyTrial(running).try_rule("Does it say bomb?", texts)
    assert [sample.text for sample in found.samples] == [text.text for text in texts]
    assert sum(sample.probability_basis_points == LIKELY for sample in found.samples) == 60
    assert judge.at_once_max <= 4


async def test_what_could_not_be_judged_is_said(data_dir: Path, judge: ScriptedJudge) -> None:
    judge.opinion = lambda asked: reset_before_headers() if "odd" in asked.text else UNLIKELY
    async with running_judge(_settings(data_dir, judge)) as running:
        trial = PolicyTrial(running)
        found = await trial.try_rule("Is it?", [TrialText("odd"), TrialText("even")])
        assert [sample.probability_basis_points for sample in found.samples] == [None, UNLIKELY]
        assert found.missing_reason
        with pytest.raises(
            InvalidRequest, match=r"there are 0\. Some texts could not be judged: T"
        ):
            found.fitted()
        with pytest.raises(Unavailable, match="The judge answered nothing"):
            await trial.try_rule("Is it?", [TrialText("odd")])
        with pytest.raises(InvalidRequest, match=r"ends with '\?'"):
            await trial.try_rule("It is.", [TrialText("even")])
        with pytest.raises(InvalidRequest, match="texts"):
            await trial.try_rule("Is it?", [])


async def test_without_a_judge_there_is_no_trial(data_dir: Path) -> None:
    settings = Settings.model_validate({"database": {"data_dir": data_dir}})
    with pytest.raises(SettingsError, match="no judge"):
        async with running_judge(settings):
            pass


@pytest.fixture
def program(tmp_path: Path, judge: ScriptedJudge) -> Program:
    """Returns a program whose configuration has only a judge, because a trial starts no database."""
    more = f"""
[[backends]]
name = "judge"
kind = "openai"
urls = ["{judge.url}"]
retries = 0
[judge]
backend = "judge"
model = "m"
first = {{ backend = "judge", model = "small" }}
"""
    config = write_config(tmp_path, tmp_path / "data", more=more)
    return Program(config, tmp_path, warm=True)


async def _run(program: Program, *arguments: str) -> Outcome:
    return await asyncio.to_thread(program.run, "policy", "try", *arguments)


async def _json(program: Program, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = await asyncio.to_thread(program.json, "policy", "try", *arguments)
    return found


def _write(folder: Path, *lines: object) -> str:
    file = folder / "labelled.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(file)


async def test_the_command_on_texts(program: Program, tmp_path: Path) -> None:
    rule = ("--rule", "Does it say bomb?")
    found = await _json(program, *rule, "--text", "a bomb", "--text", "peace")
    assert found["judge"] == {"backend": "judge", "model": "m"}
    assert [(case["probability_basis_points"], case["matched"]) for case in found["data"]] == [
        (LIKELY, True),
        (UNLIKELY, False),
    ]
    assert (found["calibration"], found["missing"]) == (None, 0)
    shown = await _run(program, *rule, "--text", "a bomb", "--threshold", "95%")
    assert (shown.code, shown.err) == (0, "")
    row = next(line for line in shown.out.splitlines() if "a bomb" in line)
    assert row.split()[:4] == ["90", "%", "no", "-"]
    assert not (tmp_path / "data" / "postgres").exists()


async def test_the_command_on_a_labelled_file(
    program: Program, judge: ScriptedJudge, tmp_path: Path
) -> None:
    judge.opinion = lambda asked: int(asked.text.split()[-1])
    rated = [(9000, True), (6000, True), (5500, False), (2000, False), (1000, False)]
    lines = [
        {"text": f"{number} {value}", "label": label, "kind": "more"}
        for number, (value, label) in enumerate(rated * 3)
    ]
    file = _write(tmp_path, *lines)
    found = await _json(program, "--rule", "Is it?", "--file", file)
    calibration = found["calibration"]
    assert calibration["suggested_threshold_basis_points"] == 5750
    assert calibration["auc"] == 1.0
    at = {cut["threshold_basis_points"]: cut for cut in calibration["thresholds"]}
    assert (at[5000]["precision"], at[5000]["recall"]) == (0.6667, 1.0)
    assert (at[5750]["true_positives"], at[5750]["false_positives"]) == (6, 0)
    assert sum(bin_["yes"] + bin_["no"] for bin_ in found["histogram"]) == 15
    shown = await _run(program, "--rule", "Is it?", "--file", file)
    assert shown.code == 0
    assert "Suggested threshold: 57.5 %" in shown.out
    # Without a calibration, the output contains scores and no probabilities.
    assert "score" in shown.out
    assert "probabilit" not in shown.out
    calibrated = await _run(program, "--rule", "Is it?", "--file", file, "--calibrate")
    assert "probability" in calibrated.out
    assert "basis points" not in shown.out + calibrated.out
    # The histogram, without its bars in a pipe.
    assert "score from\ttexts\n0 %\t0\n10 %\t3\n20 %\t3\n" in shown.out


async def test_what_the_command_refuses(
    program: Program, judge: ScriptedJudge, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\n{"text": 1}\n')
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")

    async def refusal(*arguments: str) -> str:
        found = await asyncio.to_thread(program.refusal, "policy", "try", *arguments)
        assert isinstance(found, str)
        return found

    assert "ends with '?'" in await refusal("--rule", "It is.", "--text", "x")
    assert "Line 2" in await refusal("--rule", "Is it?", "--file", str(bad))
    assert "texts" in await refusal("--rule", "Is it?", "--file", str(empty))
    assert "No such file" in await refusal("--rule", "Is it?", "--file", str(tmp_path / "none"))
    judge.opinion = lambda _: reset_before_headers()
    assert "The judge answered nothing" in await refusal("--rule", "Is it?", "--text", "x")
    for wrong in ((), ("--text", "x", "--file", str(bad)), ("--text", "x", "--threshold", "0")):
        assert (await _run(program, "--rule", "Is it?", *wrong)).code == 2


async def test_the_limit_of_the_first_judge_comes_from_labels(
    program: Program, judge: ScriptedJudge, tmp_path: Path
) -> None:
    judge.opinion = lambda asked: int(asked.text.split()[-1])
    lines = [{"text": f"{number} {9000 - 20 * number}", "label": True} for number in range(300)]
    file = _write(tmp_path, *lines)
    found = await _json(program, "--rule", "Is it?", "--file", file, "--first", "--misses", "1%")
    assert found["judge"] == {"backend": "judge", "model": "small"}
    assert {asked.received.json["model"] for asked in judge.asked} == {"small"}
    # With 300 labels, the guarantee of 1 % requires that no labelled text is below the limit.
    limit = 9000 - 20 * 299
    assert found["guarantees"]["misses"]["basis_points"] == limit
    harmless = [{"text": f"No {value}", "label": False} for value in (10, limit - 1, limit, 9999)]
    file = _write(tmp_path, *lines, *harmless)
    asked = ("--rule", "Is it?", "--file", file, "--first")
    shown = await _run(program, *asked, "--misses", "1%")
    assert (
        f"settles_below_basis_points = {limit}: at most 1.00% misses by the first judge, with 95% "
        "confidence. With this setting, the first judge decides 2 of these 304 texts by itself."
    ) in " ".join(shown.out.split())
    # The limit is compared with scores, so it needs no calibration. The first judge denies nothing.
    for wrong in ("--calibrate",), ("--false-denials", "1%"):
        assert (await _run(program, *asked, *wrong)).code == 2
