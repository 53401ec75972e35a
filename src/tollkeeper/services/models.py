"""Reading the catalogue as one organization sees it."""

from dataclasses import dataclass

from tollkeeper.domain.access import CustomerCaller
from tollkeeper.domain.catalog import Catalog, Model, ModelAccess, model_access
from tollkeeper.storage import organizations
from tollkeeper.storage.database import Database


@dataclass(slots=True)
class CurrentCatalog:
    """The catalogue in force; a reload puts another one here, calls under way keep theirs."""

    catalog: Catalog


class Models:
    def __init__(self, database: Database, current: CurrentCatalog) -> None:
        self._database = database
        self._current = current

    async def model_read(self, caller: CustomerCaller, model_id: str) -> tuple[Model, ModelAccess]:
        model = self._current.catalog.find(model_id, param="model")
        async with self._database.reading() as connection:
            checks = await organizations.checks_of(connection, caller.organization_id)
        return model, model_access(model, checks)
