"""Prepares and caches plans: everything about a call that depends only on its key and model."""

from collections.abc import Mapping

from tollkeeper.backends.fallback import backend_for
from tollkeeper.backends.port import Backend
from tollkeeper.domain.access import ProjectCaller
from tollkeeper.domain.catalog import Catalog, Model
from tollkeeper.domain.prompt import CachingWish, Prompt
from tollkeeper.domain.routes import PricesInForce
from tollkeeper.services.calls.isolation import Isolation
from tollkeeper.services.models import CurrentCatalog, Models

# The maximum number of plans of one organization, and of organizations with plans.
PLANS_OF_ORGANIZATION_MAX = 256
ORGANIZATIONS_MAX = 1024


class Plan:
    """Contains the data of a key's calls to a model: the caller, the backend, the prices."""

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
        """Returns the prices of calls that are admitted at this time (Unix seconds)."""
        prices = self._prices
        if prices is None or not prices.since <= now < prices.until:
            prices = self._prices = PricesInForce(self.model, now)
        return prices

    def tool_fee(self, prompt: Prompt) -> int:
        """Returns the price of the provider's tools. It is due whether the model uses them or not,
        because no report tells how often it did."""
        prices = self.model.tool_prices
        if not prices or not prompt.tools:
            return 0
        return sum(prices.get(name, 0) for name, _ in prompt.provider_tools)


class Plans:
    """Caches plans by organization. A plan is used only for the same caller and the same catalogue:
    both are replaced when the key, the model or the settings change. Admission reads the key, the
    project and all limits under a lock for each call, so a plan contains none of these."""

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
        # By integers, which hash faster than ids. The oldest organization comes first.
        self._plans: dict[int, dict[tuple[int, str], Plan]] = {}

    async def plan_for(self, caller: ProjectCaller, model_id: str) -> Plan:
        """Returns the plan of the key's calls to a model. Raises ModelNotFound, PermissionDenied or
        Unavailable if the organization cannot call the model now."""
        plans = self._plans.get(caller.organization_id.int)
        name = (caller.key_id.int, model_id)
        plan = None if plans is None else plans.get(name)
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
            # An organization may lose a check that a model requires, so such a plan is not cached.
            self._cache(caller.organization_id.int, name, plan)
        return plan

    def _cache(self, organization: int, name: tuple[int, str], plan: Plan) -> None:
        """Caches a plan. If an organization has too many plans, all its plans are dropped; if there
        are too many organizations, the first one's plans are dropped."""
        plans = self._plans.get(organization)
        if plans is None:
            if len(self._plans) >= ORGANIZATIONS_MAX:
                del self._plans[next(iter(self._plans))]
            plans = self._plans[organization] = {}
        elif len(plans) >= PLANS_OF_ORGANIZATION_MAX and name not in plans:
            plans.clear()
        plans[name] = plan
