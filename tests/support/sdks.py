"""Provides the SDKs of OpenAI and Anthropic, for tests that call the gateway as users do.

    from tests.support.sdks import openai

Each SDK has more than a thousand modules, and importing them takes longer than collecting all tests.
So they are imported when the tests begin to run, and only if a test uses them. A module that names
their types in annotations begins with `from __future__ import annotations`.
"""

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

__all__ = ["anthropic", "openai"]


class LazyModule:
    """Replaces a module, and imports it when one of its attributes is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def load(self) -> ModuleType:
        return import_module(self._name)

    def __getattr__(self, name: str) -> Any:
        # While pytest collects a module, it reads only such attributes of the module's objects.
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
    """Imports the used SDKs before an event loop runs, because the import would block the loop."""
    if not session.config.option.collectonly:
        load_used_by({item.module for item in session.items if isinstance(item, pytest.Function)})


def load_used_by(modules: Iterable[ModuleType]) -> None:
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, LazyModule):
                value.load()
