"""Plans: what depends only on a key and a model is decided once and kept for the calls that follow."""

from collections.abc import Mapping

from tollkeeper.backends.fallback import backend_for
from tollkeeper.backends.port import Backend
from tollkeeper.domain.access import ProjectCaller
from tollkeeper.domain.catalog import Catalog, Model
from tollkeeper.domain.prompt import CachingWish, Prompt
from tollkeeper.domain.routes import PricesInForce
from tollkeeper.services.calls.isolation import Isolation
from tollkeeper.services.models import CurrentCatalog, Models

# Plans of one organization, and organizations that have plans.
PLANS_OF_ORGANIZATION_MAX = 256
ORGANIZATIONS_MAX = 1024


class Plan:
    """A key's calls of a model: who calls, which backend answers, at which prices."""

    __slots__ = (
        "_prices",
        "asks_tokenizer",
        "backend",
        "caching",
        "caller",
        "catalog",
        "holds_by_bytes",
        "model",
    )

    def __init__(
        self,
        caller: ProjectCaller,
        model: Model,
        backend: Backend,
        caching: CachingWish | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        self.caller = caller
        self.model = model
        self.backend = backend
        # For a call that names neither a cache key nor a salt.
        self.caching = caching or CachingWish()
        self.catalog = catalog
        self.asks_tokenizer = backend.counts_tokens
        self.holds_by_bytes = model.token_bounds.text_by_bytes
        self._prices: PricesInForce | None = None

    def prices_at(self, now: int) -> PricesInForce:
        """Return the prices of calls that are admitted at this time (Unix seconds)."""
        prices = self._prices
        if prices is None or not prices.since <= now < prices.until:
            prices = self._prices = PricesInForce(self.model, now)
        return prices

    def tool_fee(self, prompt: Prompt) -> int:
        """Return the price of the tools that the provider runs. It is due whether the model uses
        them or not: no report says how often it did."""
        prices = self.model.tool_prices
        if not prices or not prompt.tools:
            return 0
        return sum(prices.get(name, 0) for name, _ in prompt.provider_tools)


class Plans:
    """Keeps plans by organization. A plan is used only for the same caller and the same catalogue: both
    are replaced when the key, the model or the settings change. Admission reads the key, the project
    and all limits under a lock for each call, so none of these is in a plan."""

    def __init__(
        self,
        models: Models,
        current: CurrentCatalog,
        backends: Mapping[str, Backend],
        isolation: Isolation,
    ) -> None:
        self._models = models
        self._current = current
        self._backends = backends
        self._isolation = isolation
        # By numbers: their hash is faster than that of an id. The oldest organization first.
        self._kept: dict[int, dict[tuple[int, str], Plan]] = {}

    async def plan_for(self, caller: ProjectCaller, model_id: str) -> Plan:
        """Return the plan of the key's calls of a model. Raise ModelNotFound, PermissionDenied or
        Unavailable if the organization cannot call the model now."""
        kept = self._kept.get(caller.organization_id.int)
        name = (caller.key_id.int, model_id)
        plan = None if kept is None else kept.get(name)
        catalog = self._current.catalog
        if plan is not None and plan.caller is caller and plan.catalog is catalog:
            return plan
        model = await self._models.model_for_call(caller, model_id)
        plan = Plan(
            caller,
            model,
            backend_for(model, self._backends),
            self._isolation.caching_wish(caller, model, None),
            catalog,
        )
        if not model.required_checks:
            # An organization may lose a check that a model requires: it is read for each call.
            self._keep(caller.organization_id.int, name, plan)
        return plan

    def _keep(self, organization: int, name: tuple[int, str], plan: Plan) -> None:
        """Keep a plan. An organization with too many plans loses its own, and of too many
        organizations the one that came first loses its plans."""
        kept = self._kept.get(organization)
        if kept is None:
            if len(self._kept) >= ORGANIZATIONS_MAX:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[organization] = {}
        elif len(kept) >= PLANS_OF_ORGANIZATION_MAX and name not in kept:
            kept.clear()
        kept[name] = plan
