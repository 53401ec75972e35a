"""Models of the catalogue, and whether a caller may use them."""

from dataclasses import dataclass

from tollkeeper.core.access import ProjectCaller
from tollkeeper.core.catalog import Catalog, Model, ModelAccess, model_access
from tollkeeper.core.errors import PermissionDenied, Unavailable
from tollkeeper.database.database import Database
from tollkeeper.tenants import organizations_store as organizations


@dataclass(slots=True)
class CurrentCatalog:
    """A reload of the settings replaces it. Calls in flight go on with what they began with."""

    catalog: Catalog


class Models:
    def __init__(self, database: Database, current: CurrentCatalog) -> None:
        self._database = database
        self._current = current

    async def model_for_call(self, caller: ProjectCaller, model_id: str) -> Model:
        """Raises PermissionDenied if the organization lacks a required check, and Unavailable if
        the model isn't ready. The model lists of key and project are admission's job. Reads nothing
        from the database for models that are ready and require no check."""
        model = self._current.catalog.find(model_id, param="model")
        if not model.required_checks and model.is_ready:
            return model
        async with self._database.autocommit(caller.organization_id) as connection:
            checks = await organizations.checks_of(connection, caller.organization_id)
        access = model_access(model, checks)
        if access.locked:
            missing = ", ".join(access.missing_requirements)
            raise PermissionDenied(
                f"The model {model.id} needs checks that the organization lacks: {missing}.",
                param="model",
            )
        if not access.available:
            raise Unavailable(f"The model {model.id} is not ready.", param="model")
        return model

    async def model_read(self, caller: ProjectCaller, model_id: str) -> tuple[Model, ModelAccess]:
        model = self._current.catalog.find(model_id, param="model")
        async with self._database.autocommit(caller.organization_id) as connection:
            checks = await organizations.checks_of(connection, caller.organization_id)
        return model, model_access(model, checks, is_allowed=caller.may_use(model.id))

    async def model_list(self, caller: ProjectCaller) -> list[tuple[Model, ModelAccess]]:
        """Those that are available now."""
        async with self._database.autocommit(caller.organization_id) as connection:
            checks = await organizations.checks_of(connection, caller.organization_id)
        listed = [
            (model, model_access(model, checks, is_allowed=caller.may_use(model.id)))
            for model in self._current.catalog.models
        ]
        return [(model, access) for model, access in listed if access.available]
