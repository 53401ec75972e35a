"""Other values for constants of the program, in this process and for a while."""

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
    """Change constants by their names below `tollkeeper`. For a class, a dict has other defaults of its
    fields: `{"bootstrap.backends.BackendConfig": {"failures_to_eject": 1}}`."""
    with ExitStack() as stack:
        for name, value in changes.items():
            path = f"tollkeeper.{name}"
            new = partial(resolve_name(path), **value) if isinstance(value, dict) else value
            stack.enter_context(patch(path, new))
        yield


def constants_path(folder: Path, changes: Mapping[str, Any]) -> str:
    """Write a module into the folder by which processes begin with these changes, and return the
    `PYTHONPATH` for them."""
    (folder / "sitecustomize.py").write_text(
        "from tests.support.constants import constants\n"
        f"changed = constants({dict(changes)!r})\nchanged.__enter__()\n"
    )
    return f"{folder}{os.pathsep}{Path(__file__).parents[2]}"


def backend_constants(**values: Any) -> dict[str, Any]:
    return {"bootstrap.backends.BackendConfig": values}
