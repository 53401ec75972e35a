"""Fuzzes one target, in an environment with atheris and the project's packages.

python -m tests.fuzz.run_target NAME [libFuzzer options] CORPUS
"""

import importlib
import sys
from pathlib import Path

from tests.fuzz.json_mutator import mutated

_FOLDER = str(Path(__file__).parents[2])


def main() -> None:
    atheris = importlib.import_module("atheris")
    name = sys.argv[1]
    with atheris.instrument_imports(include=["tollkeeper"]):
        targets = importlib.import_module("tests.fuzz.targets")
    change = None
    if name in targets.JSON_TARGETS:

        def change(data: bytes, size_max: int, seed: int) -> bytes:
            return mutated(data, size_max, seed, atheris.Mutate)

    # The options of libFuzzer follow the name.
    atheris.Setup([sys.argv[0], *sys.argv[2:]], targets.TARGETS[name], custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path.insert(0, _FOLDER)
    main()
