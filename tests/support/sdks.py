"""The SDKs of OpenAI and Anthropic, for tests that call the gateway as their users do.

    from tests.support.sdks import openai

Each has more than a thousand modules, which take longer to import than all tests take to be found.
So they are imported when the tests begin to run, and only if one of the tests uses them. A module
that names their types in annotations begins with `from __future__ import annotations`.
"""

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

__all__ = ["anthropic", "openai"]


class LazyModule:
    """Stands for a module, and imports it when something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def load(self) -> ModuleType:
        return import_module(self._name)

    def __getattr__(self, name: str) -> Any:
        # pytest looks at everything in a test module, and asks for such names only.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.load(), name)


if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic = LazyModule("anthropic")
    openai = LazyModule("openai")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Imports what the tests use before any event loop runs, which an import would hold up."""
    if not session.config.option.collectonly:
        load_used_by({item.module for item in session.items if isinstance(item, pytest.Function)})


def load_used_by(modules: Iterable[ModuleType]) -> None:
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, LazyModule):
                value.load()
