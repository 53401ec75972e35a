"""Runs one backend without a gateway, for the command that tests a backend."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.core.port import Backend
from tollkeeper.providers.model_list import ListOutcome, ModelList, list_models
from tollkeeper.setup.backends import backend_config, build_backends
from tollkeeper.setup.catalog import build_catalog
from tollkeeper.setup.engine import running_engine
from tollkeeper.setup.identities import shown_credential
from tollkeeper.setup.settings import BackendSettings, Settings, SettingsError


def model_on_backend(settings: Settings, backend: str, model_id: str | None) -> Model:
    """As this backend has it. Without an id, the first model of the settings that the backend serves."""
    if backend not in {declared.name for declared in settings.backends}:
        names = ", ".join(declared.name for declared in settings.backends) or "none"
        raise NotFound(f"There is no backend {backend!r}; there are: {names}.")
    for model in build_catalog(settings).models:
        if model_id not in (None, model.id):
            continue
        for candidate in (route.model for route in model.routes):
            if candidate.backend == backend:
                return candidate
        if model.backend == backend:
            return model
    if model_id is None:
        raise InvalidRequest(f"The backend {backend} serves no model in the settings.")
    raise NotFound(f"The backend {backend} does not serve a model {model_id!r}.")


def credential_of(settings: Settings, backend: str) -> str:
    """Without the secret."""
    (declared,) = (found for found in settings.backends if found.name == backend)
    return shown_credential(declared)


async def models_of_replica(declared: BackendSettings, url: str) -> ModelList:
    """Asks nothing if the backend's key is missing."""
    try:
        config = backend_config(declared, None)
    except (ValueError, SettingsError):
        return ModelList(ListOutcome.NOT_ASKED)
    return await list_models(config, url)


@asynccontextmanager
async def running_backend(settings: Settings, name: str) -> AsyncIterator[Backend]:
    """With the embedded engine if the backend uses it, and without other backends' secrets."""
    backends = tuple(backend for backend in settings.backends if backend.name == name)
    reduced = settings.model_copy(update={"backends": backends})
    async with running_engine(reduced) as engine:
        address = None if engine is None else engine.address
        backend = build_backends(reduced, address)[name]
        await backend.start()
        try:
            yield backend
        finally:
            await backend.close()
