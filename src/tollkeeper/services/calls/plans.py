"""Prepares and caches plans. A plan is the data of a call that depends only on its API key and
model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tollkeeper.backends.fallback import backend_for
from tollkeeper.backends.port import Backend
from tollkeeper.domain.access import ProjectCaller
from tollkeeper.domain.catalog import Catalog, Model
from tollkeeper.domain.prompt import CachingWish, Prompt
from tollkeeper.domain.routes import PricesInForce
from tollkeeper.services.calls.isolation import Isolation
from tollkeeper.services.models import CurrentCatalog, Models

# The maximum number of cached plans of one organization, and of organizations with cached plans.
PLANS_OF_ORGANIZATION_MAX = 256
ORGANIZATIONS_MAX = 1024


@dataclass(slots=True, eq=False)
class Plan:
    """Contains the data that all calls with one API key to one model share: the caller, the
    backend, the prices."""

    caller: ProjectCaller
    model: Model
    backend: Backend
    # The key and the salt of the backend's prefix cache, for calls whose clients send neither.
    caching: CachingWish = field(default_factory=CachingWish)
    catalog: Catalog | None = None
    asks_tokenizer: bool = field(init=False)
    # Whether the hold of a prompt with only text depends on more than its tokens and the output
    # limit: on its bytes, on searches for which the request does not ask, on media in the answer,
    # or on the longest output of the model.
    has_special_bounds: bool = field(init=False)
    # The prices, if they never change; otherwise None.
    fixed_prices: PricesInForce | None = field(init=False)
    _prices: PricesInForce = field(init=False)

    def __post_init__(self) -> None:
        model = self.model
        self.asks_tokenizer = self.backend.counts_tokens
        self.has_special_bounds = bool(
            model.token_bounds.text_by_bytes
            or model.token_bounds.unrequested_searches_max
            or model.writes_audio
            or model.exceeds_output_limit
        )
        self._prices = PricesInForce(model, 0)
        self.fixed_prices = self._prices if self._prices.until == math.inf else None

    def prices_at(self, now: int) -> PricesInForce:
        """Returns the prices of calls that are admitted at `now` (Unix seconds)."""
        prices = self._prices
        if not prices.since <= now < prices.until:
            prices = self._prices = PricesInForce(self.model, now)
        return prices

    def tool_fee(self, prompt: Prompt) -> int:
        """Returns the price, in picousd, of the provider's tools in the prompt. A call pays this
        price whether the model uses the tools or not, because providers do not report how often
        their tools are used."""
        prices = self.model.tool_prices
        return sum(prices.get(name, 0) for name, _ in prompt.provider_tools)


class Plans:
    """Caches plans by organization. A cached plan is used only while its caller and its catalogue
    are still the current objects: a change to the key, the model or the settings replaces one of
    these objects. A plan contains no limits and no state of the key or project, because admission
    reads them from the database, under a lock, for each call."""

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
        # Organization -> (key, model id) -> plan. The organization and the key are integers, which
        # hash faster than UUIDs. The organization that was added first comes first.
        self._plans: dict[int, dict[tuple[int, str], Plan]] = {}

    def cached(self, caller: ProjectCaller, model_id: str) -> Plan | None:
        """Returns the cached plan for calls of this caller to this model; None if there is none."""
        try:
            plan = self._plans[caller.organization_id.int][caller.key_id.int, model_id]
        except KeyError:
            return None
        if plan.caller is caller and plan.catalog is self._current.catalog:
            return plan
        return None

    async def create(self, caller: ProjectCaller, model_id: str) -> Plan:
        """Creates the plan for calls of this caller to this model, and caches it. Raises
        ModelNotFound, PermissionDenied or Unavailable if the organization cannot call the model
        now."""
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
            # A model may require checks (approvals) of the organization. An operator can withdraw a
            # check at any time, so a plan for such a model is not cached.
            self._cache(model_id, plan)
        return plan

    def _cache(self, model_id: str, plan: Plan) -> None:
        """Caches a plan. If the organization has too many plans, drops all its plans first. If
        there are too many organizations, drops the plans of the organization that was added
        first."""
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
