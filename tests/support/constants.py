"""Replaces constants of the program temporarily, in this process or in processes that it starts."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch


@contextmanager
def constants(changes: Mapping[str, Any]) -> Iterator[None]:
    """Changes constants, which are named by their path below `tollkeeper`. For a class, a dict changes the
    defaults of its fields: `{"setup.backends.BackendConfig": {"failures_to_eject": 1}}`."""
    with ExitStack() as stack:
        for name, value in changes.items():
            path = f"tollkeeper.{name}"
            new = _with_defaults(resolve_name(path), value) if isinstance(value, dict) else value
            stack.enter_context(patch(path, new))
        yield


def _with_defaults(class_: type, defaults: Mapping[str, Any]) -> Any:
    """Returns a function that creates objects of this class, and whose fields `dataclasses` can list."""
    new = partial(class_, **defaults)
    new.__dict__.update(
        (name, value) for name, value in vars(class_).items() if name == "__dataclass_fields__"
    )
    return new


def constants_path(folder: Path, changes: Mapping[str, Any]) -> str:
    """Writes a module into the folder that makes these changes when a process starts. Returns the
    `PYTHONPATH` for such processes."""
    (folder / "sitecustomize.py").write_text(
        "from tests.support.constants import constants\n"
        f"changed = constants({dict(changes)!r})\nchanged.__enter__()\n"
    )
    return f"{folder}{os.pathsep}{Path(__file__).parents[2]}"


def backend_constants(**values: Any) -> dict[str, Any]:
    return {"setup.backends.BackendConfig": values}
