"""Fuzzes one target. It runs in an environment that has atheris, with the project's packages beside.

python -m tests.fuzz.run_target NAME [libFuzzer options] CORPUS
"""

import importlib
import sys
from pathlib import Path

_FOLDER = str(Path(__file__).parents[2])


def main() -> None:
    atheris = importlib.import_module("atheris")
    name = sys.argv[1]
    with atheris.instrument_imports(include=["tollkeeper"]):
        targets = importlib.import_module("tests.fuzz.targets")
    # The options of libFuzzer follow the name.
    atheris.Setup([sys.argv[0], *sys.argv[2:]], targets.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path.insert(0, _FOLDER)
    main()
