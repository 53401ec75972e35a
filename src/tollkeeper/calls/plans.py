"""A plan is what depends only on a call's API key and model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tollkeeper.calls.isolation import Isolation
from tollkeeper.core.access import ProjectCaller
from tollkeeper.core.catalog import Catalog, Model
from tollkeeper.core.port import Backend
from tollkeeper.core.prompt import CachingWish, Prompt
from tollkeeper.core.routes import PricesInForce
from tollkeeper.providers.fallback import backend_for
from tollkeeper.tenants.models import CurrentCatalog, Models

PLANS_OF_ORGANIZATION_MAX = 256
ORGANIZATIONS_MAX = 1024


@dataclass(slots=True, eq=False)
class Plan:
    caller: ProjectCaller
    model: Model
    backend: Backend
    # For calls whose clients send neither key nor salt.
    caching: CachingWish = field(default_factory=CachingWish)
    catalog: Catalog | None = None
    asks_tokenizer: bool = field(init=False)
    # Even with text only, the call may cost more than its hold, or the hold depends on more than tokens
    # and the output limit: on bytes, unrequested searches, media in the answer, or the model's longest
    # output.
    has_special_bounds: bool = field(init=False)
    # None if they can change.
    fixed_prices: PricesInForce | None = field(init=False)
    _prices: PricesInForce = field(init=False)

    def __post_init__(self) -> None:
        model = self.model
        self.asks_tokenizer = self.backend.counts_tokens
        self.has_special_bounds = bool(
            model.token_bounds.text_by_bytes
            or model.token_bounds.unbounded
            or model.token_bounds.unrequested_searches_max
            or model.writes_audio
            or model.exceeds_output_limit
        )
        self._prices = PricesInForce(model, 0)
        self.fixed_prices = self._prices if self._prices.until == math.inf else None

    def prices_at(self, now: int) -> PricesInForce:
        """`now` is in Unix seconds."""
        prices = self._prices
        if not prices.since <= now < prices.until:
            prices = self._prices = PricesInForce(self.model, now)
        return prices

    def tool_fee(self, prompt: Prompt) -> int:
        """In picousd, for the provider's tools. Paid whether the model uses them or not, because
        providers don't report how often they're used."""
        prices = self.model.tool_prices
        return sum(prices.get(name, 0) for name, _ in prompt.provider_tools)


class Plans:
    """A cached plan is good while its caller and catalogue are the current objects: any change to
    key, model or settings replaces one of them. It has no limits and no state of key or project,
    because admission reads those under a lock for each call."""

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
        # Organization -> (key, model id) -> plan, organizations oldest first. Integers hash faster
        # than UUIDs.
        self._plans: dict[int, dict[tuple[int, str], Plan]] = {}

    def cached(self, caller: ProjectCaller, model_id: str) -> Plan | None:
        try:
            plan = self._plans[caller.organization_id.int][caller.key_id.int, model_id]
        except KeyError:
            return None
        if plan.caller is caller and plan.catalog is self._current.catalog:
            return plan
        return None

    async def create(self, caller: ProjectCaller, model_id: str) -> Plan:
        """Raises ModelNotFound, PermissionDenied or Unavailable if the organization can't call the
        model now."""
        catalog = self._current.catalog
        model = await self._models.model_for_call(caller, model_id)
        plan = Plan(
            caller,
            model,
            backend_for(model, self._backends),
            self._isolation.caching_wish(caller, model, None),
            catalog,
        )
        if not model.required_checks:
            # An operator can withdraw a check at any time, so such a plan isn't cached.
            self._cache(model_id, plan)
        return plan

    def _cache(self, model_id: str, plan: Plan) -> None:
        """At a limit, drops all the organization's plans, or those of the oldest organization."""
        caller = plan.caller
        organization, key_and_model = caller.organization_id.int, (caller.key_id.int, model_id)
        plans = self._plans.get(organization)
        if plans is None:
            if len(self._plans) >= ORGANIZATIONS_MAX:
                del self._plans[next(iter(self._plans))]
            plans = self._plans[organization] = {}
        elif len(plans) >= PLANS_OF_ORGANIZATION_MAX and key_and_model not in plans:
            plans.clear()
        plans[key_and_model] = plan
