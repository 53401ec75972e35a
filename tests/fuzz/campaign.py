"""Runs a target under atheris in a separate environment, and reads the results of libFuzzer."""

import hashlib
import os
import re
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.seeds import seeds_of
from tests.journeys.clients.environments import python_environment

_PROJECT = Path(__file__).parents[2]
_LOCKS = Path(__file__).parent / "locks"
# Keeps inputs that reached new code for later runs. The folder is not part of the repository.
CORPUS = _PROJECT / ".fuzz"
_LENGTH_MAX = 4096
# An input that takes longer counts as a hang. The limit allows for a busy machine.
_INPUT_WITHIN_S = 60
_SLACK_S = 300  # Additional time for the start and the end of a run.
_EXECUTED = re.compile(rb"stat::number_of_executed_units:\s*(\d+)")
_EDGES = re.compile(rb"cov: (\d+)")
_CORPUS_SIZE = re.compile(rb"corp: (\d+)/")


@dataclass(frozen=True, slots=True)
class Campaign:
    target: str
    executions: int
    edges: int
    corpus: int
    # The file with the input that broke the target, and the output of that run.
    crash: Path | None
    said: str


def install_fuzzer() -> Path:
    """Returns an interpreter with atheris. Raises NotInstalled if atheris cannot be installed."""
    return python_environment("atheris", _LOCKS)


def fuzz(python: Path, target: str, seconds: int) -> Campaign:
    """Fuzzes a target for `seconds`, with an interpreter that has atheris."""
    corpus = CORPUS / target
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds_of(target):
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    crashes = CORPUS / "crashes" / target
    crashes.mkdir(parents=True, exist_ok=True)
    before = set(crashes.iterdir())
    done = subprocess.run(
        [
            *(python, "-m", "tests.fuzz.run_target", target),
            *(f"-max_total_time={seconds}", f"-max_len={_LENGTH_MAX}", "-print_final_stats=1"),
            *(f"-timeout={_INPUT_WITHIN_S}", f"-artifact_prefix={crashes}/", str(corpus)),
        ],
        cwd=_PROJECT,
        env={**os.environ, "PYTHONPATH": _paths()},
        capture_output=True,
        check=False,
        timeout=seconds + _SLACK_S,
    )
    said = done.stdout + done.stderr
    found = sorted(set(crashes.iterdir()) - before)
    crash = found[0] if found else None
    if done.returncode and crash is None:
        raise RuntimeError(said.decode(errors="replace")[-4000:])
    return Campaign(
        target,
        executions=_last(_EXECUTED, said),
        edges=_last(_EDGES, said),
        corpus=_last(_CORPUS_SIZE, said),
        crash=crash,
        said=said.decode(errors="replace") if crash is not None else "",
    )


def _paths() -> str:
    """Returns the paths of the sources and of the packages of this interpreter."""
    packages = sysconfig.get_paths()["purelib"]
    return os.pathsep.join([str(_PROJECT), str(_PROJECT / "src"), packages, *_own_paths()])


def _own_paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _last(pattern: re.Pattern[bytes], said: bytes) -> int:
    found = pattern.findall(said)
    return int(found[-1]) if found else 0
