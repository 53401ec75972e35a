"""Tests that calls with the same key and model share a plan until the key or the model changes."""

from dataclasses import replace
from unittest.mock import Mock
from uuid import uuid4

import pytest

from tests.support.backend_calls import MODEL
from tollkeeper.calls import plans as plans_module
from tollkeeper.calls.isolation import Isolation
from tollkeeper.calls.plans import Plan, Plans
from tollkeeper.core.access import KeyId, OrganizationId, ProjectCaller, ProjectId
from tollkeeper.core.catalog import Catalog
from tollkeeper.core.declared_prices import pricing_from_declared
from tollkeeper.core.errors import ModelNotFound
from tollkeeper.core.pricing import Bounds, PriceChange
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.tenants.models import CurrentCatalog, Models

_SALTED = replace(MODEL, id="example/salted", cache_salt_field="cache_salt")


def _caller(organization_id: OrganizationId | None = None) -> ProjectCaller:
    organization_id = organization_id or OrganizationId(uuid4())
    return ProjectCaller(organization_id, ProjectId(uuid4()), KeyId(uuid4()), frozenset())


def _plans(current: CurrentCatalog) -> Plans:
    backends = {MODEL.backend: Mock(counts_tokens=False)}
    isolation = Isolation(Vault(b"a secret of thirty-two bytes ..."))
    return Plans(Models(Mock(), current), current, backends, isolation)


async def _plan_for(plans: Plans, caller: ProjectCaller, model_id: str) -> Plan:
    return plans.cached(caller, model_id) or await plans.create(caller, model_id)


@pytest.fixture
def current() -> CurrentCatalog:
    return CurrentCatalog(Catalog((MODEL, _SALTED)))


async def test_a_plan_is_kept_for_the_same_key_and_model(current: CurrentCatalog) -> None:
    plans, caller = _plans(current), _caller()
    plan = await _plan_for(plans, caller, MODEL.id)
    assert await _plan_for(plans, caller, MODEL.id) is plan
    assert await _plan_for(plans, caller, _SALTED.id) is not plan


async def test_a_plan_ends_when_the_key_is_read_again(current: CurrentCatalog) -> None:
    plans, caller = _plans(current), _caller()
    plan = await _plan_for(plans, caller, MODEL.id)
    read_again = replace(caller, permissions=frozenset({"models:read"}))
    assert (await _plan_for(plans, read_again, MODEL.id)).caller is read_again
    assert plan.caller is caller


async def test_a_plan_ends_with_its_catalogue(current: CurrentCatalog) -> None:
    plans, caller = _plans(current), _caller()
    await _plan_for(plans, caller, MODEL.id)
    other = replace(MODEL, context_length=1024)
    current.catalog = Catalog((other,))
    assert (await _plan_for(plans, caller, MODEL.id)).model is other
    current.catalog = Catalog((_SALTED,))
    with pytest.raises(ModelNotFound):
        await _plan_for(plans, caller, MODEL.id)


async def test_no_tenant_gets_or_evicts_the_plan_of_another(
    current: CurrentCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans_module, "PLANS_OF_ORGANIZATION_MAX", 4)
    plans, quiet, hostile = _plans(current), _caller(), OrganizationId(uuid4())
    plan = await _plan_for(plans, quiet, _SALTED.id)
    salts = {plan.caching.salt}
    for _ in range(50):
        salts.add((await _plan_for(plans, _caller(hostile), _SALTED.id)).caching.salt)
    assert len(salts) == 51
    assert await _plan_for(plans, quiet, _SALTED.id) is plan
    assert len(plans._plans[hostile.int]) <= 4


async def test_organizations_with_plans_are_limited(
    current: CurrentCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans_module, "ORGANIZATIONS_MAX", 3)
    plans = _plans(current)
    for _ in range(10):
        await _plan_for(plans, _caller(), MODEL.id)
    assert len(plans._plans) == 3


def test_prices_are_those_of_the_time_of_admission() -> None:
    later = pricing_from_declared({"prompt": "1"}, param="pricing")
    model = replace(MODEL, price_changes=(PriceChange(100, later),))
    plan = Plan(_caller(), model, Mock(counts_tokens=False))
    bounds = Bounds(1, 1, 1, 0)
    found = [plan.prices_at(now).dearest(bounds) for now in (99, 100, 101, 99)]
    assert found == [model.pricing, later, later, model.pricing]
    assert plan.fixed_prices is None
    unchanging = Plan(_caller(), MODEL, Mock(counts_tokens=False))
    assert unchanging.fixed_prices is unchanging.prices_at(10**10)
