"""Builds the bridge to the library of providers if the settings declare a backend that needs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tollkeeper.bootstrap.api_keys import api_key_of
from tollkeeper.embedded.kept_process import ProcessState
from tollkeeper.embedded.provider_bridge import (
    BridgedBackend,
    BridgeOptions,
    ProviderBridge,
    library_is_installed,
)
from tollkeeper.settings import BackendSettings, Settings, SettingsError

_POLL_S = 1.0


def build_bridge(settings: Settings) -> ProviderBridge | None:
    """Returns a bridge that is not started. One bridge serves all processes of a gateway. Raises
    SettingsError where the library or a key is missing."""
    declared = [backend for backend in settings.backends if backend.kind == "library"]
    if not declared:
        return None
    check_library(settings, declared[0].name)
    library = settings.library
    return ProviderBridge(
        BridgeOptions(
            backends=tuple(_bridged(backend) for backend in declared),
            python=library.python,
            calls_max=library.calls,
            timeout_s=settings.limits.inference_deadline_s,
            environment=library.environment,
        )
    )


def check_library(settings: Settings, backend: str) -> None:
    """Raises SettingsError where there is no library for a backend of this name."""
    python = settings.library.python
    if python and not Path(python).is_file():
        raise SettingsError(f"{python} does not exist.", ("library", "python"))
    if not python and not library_is_installed():
        raise SettingsError(
            "'library' needs a library that is not installed: "
            "pip install 'tollkeeper[providers]', or name the interpreter of an environment that "
            "has any-llm-sdk as library.python.",
            ("backends", backend, "kind"),
        )


@asynccontextmanager
async def running_bridge(settings: Settings) -> AsyncIterator[ProviderBridge | None]:
    """Starts a bridge for a command and waits until it is ready or has failed; its status says
    which. Yields None if the settings need no bridge."""
    bridge = build_bridge(settings)
    if bridge is None:
        yield None
        return
    await bridge.start()
    try:
        # The bridge restarts by itself and bounds each start, so this loop ends.
        while not await bridge.wait_ready(_POLL_S):
            if bridge.status.state is ProcessState.FAILED:
                break
        yield bridge
    finally:
        await bridge.close()


def _bridged(declared: BackendSettings) -> BridgedBackend:
    return BridgedBackend(
        name=declared.name,
        provider=declared.provider,
        api_key=api_key_of(declared),
        api_key_file=declared.api_key_file or None,
        base_url=declared.urls[0] if declared.urls else None,
    )
