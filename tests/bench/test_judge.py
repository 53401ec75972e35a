"""Tests the samples, figures, table and plot of the judge measurements. The tests ask no judge."""

import json
import random
from pathlib import Path

import pytest
from bench.judge.datasets import DATASETS, Case, Dataset, kinds, sampled
from bench.judge.report import Measured, auc, draw, error_by_chance, f1, table


def _cases(count: int) -> list[Case]:
    return [Case("Is it?", f"text {number}", number % 2 == 0) for number in range(count)]


def test_a_larger_sample_begins_with_the_smaller_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "made-1.whl").touch()
    monkeypatch.setitem(
        DATASETS, "made", Dataset("made", "made==1", lambda _: iter(_cases(50) * 2))
    )
    small, large = (sampled("made", tmp_path, texts=texts, seed=3) for texts in (10, 40))
    assert large[:10] == small
    assert len(set(large)) == 40
    assert sampled("made", tmp_path, texts=10, seed=4) != small
    assert len(sampled("made", tmp_path, texts=99, seed=3)) == 50  # Each text is used once.


def test_fifty_texts_try_to_manipulate_the_judge(tmp_path: Path) -> None:
    cases = sampled("manipulated", tmp_path, texts=99, seed=1)
    assert len({case.text for case in cases}) == 50
    assert set(kinds(cases)) == {
        *("instruction", "role play", "language", "encoding", "fence", "padding")
    }
    assert {case.label for case in cases} == {True, False}
    plain = {(case.rule, case.text) for case in sampled("plain", tmp_path, texts=99, seed=1)}
    assert all((case.rule, case.plain) in plain for case in cases)


def test_figures() -> None:
    pairs = [(0.9, True), (0.8, False), (0.6, True), (0.1, False)]
    assert auc(pairs) == 0.75
    assert f1(pairs) == pytest.approx(0.8)
    assert error_by_chance([(1.0, True), (0.0, False)], seed=1) == 0
    # The right answer is 0 % or 100 %; both differ from 50 % by 50 %.
    assert error_by_chance([(0.5, True)], seed=1) == 0.5


def test_the_table_shows_that_calibration_lowers_the_error() -> None:
    draw_ = random.Random(2)
    scored: list[tuple[Case, float | None]] = [
        (case, 6 * draw_.gauss(0.5 if case.label else -0.5, 1)) for case in _cases(120)
    ]
    measured = Measured("made", "refusal", [*scored, (Case("Is it?", "missing", True), None)])
    shown = table([measured], seed=1)
    cells = [cell.strip() for cell in shown.splitlines()[2].split("|")][1:-1]
    assert cells[:3] == ["refusals (pyrit)", "made", "120 (60)"]
    before, after, by_chance = (float(cell.split()[0]) for cell in cells[-3:])
    assert by_chance < after < before
    assert "GPT-4o (published)" in shown
    assert table([measured], seed=1) == shown
    picture = draw([measured])
    assert picture.count("<circle") > 10
    assert "text 1" not in picture + json.dumps(shown)
