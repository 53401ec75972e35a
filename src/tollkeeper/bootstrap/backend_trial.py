"""Runs one backend without a gateway, for the command that tries it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tollkeeper.backends.port import Backend
from tollkeeper.bootstrap.backends import build_backends
from tollkeeper.bootstrap.catalog import build_catalog
from tollkeeper.bootstrap.engine import running_engine
from tollkeeper.bootstrap.identities import shown_credential
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import InvalidRequest, NotFound
from tollkeeper.settings import Settings


def model_on_backend(settings: Settings, backend: str, model_id: str | None) -> Model:
    """Returns the model with this id on the backend; without an id the first one that it serves."""
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
        raise InvalidRequest(f"No model of the settings is on the backend {backend}.")
    raise NotFound(f"The backend {backend} does not serve a model {model_id!r}.")


def credential_of(settings: Settings, backend: str) -> str:
    """Describes the kind and origin of the credential, without the secret."""
    (declared,) = (found for found in settings.backends if found.name == backend)
    return shown_credential(declared)


@asynccontextmanager
async def running_backend(settings: Settings, name: str) -> AsyncIterator[Backend]:
    """Runs a backend. Needs only this backend's secrets. Starts an embedded engine if necessary."""
    own = tuple(backend for backend in settings.backends if backend.name == name)
    reduced = settings.model_copy(update={"backends": own})
    async with running_engine(reduced) as engine:
        address = None if engine is None else engine.address
        backend = build_backends(reduced, address)[name]
        await backend.start()
        try:
            yield backend
        finally:
            await backend.close()
