"""Tests that the judge gets a different cache salt for each organization, if its backend supports
this. Otherwise an organization could learn from the judge's speed which texts others have sent."""

from pathlib import Path

import pytest

from tests.support.judged_gateway import JudgedGateway, judged_gateway


async def _salts(judged: JudgedGateway, field: str, texts: list[str]) -> list[str | None]:
    """Sends the texts, and returns the salt in each question that the judge gets."""
    judged.judge.reset()
    for text in texts:
        assert (await judged.chat(text)).status_code == 200
    return [asked.received.json.get(field) for asked in judged.judge.asked]


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
async def test_every_organization_has_a_salt_of_its_own(
    data_dir: Path, conninfo: str, field: str
) -> None:
    backend = {"fields": {"cache_salt": field}}
    async with judged_gateway(data_dir, conninfo, judge_backend=backend) as judged:
        tenants = [await judged.for_next_test() for _ in range(2)]
        found = []
        for tenant in tenants:
            for word in ("war", "bomb"):
                await tenant.enforce(word, direction="request")
            salts = await _salts(tenant, field, ["one", "two"])
            assert len(salts) == 4
            assert len(set(salts)) == 1
            found.append(salts[0])
        assert None not in found
        assert found[0] != found[1]
        # The salt for the judge differs from the salt of the tenant's own calls.
        assert judged.model.requests[-1].json.get(field) not in found


async def test_no_salt_is_sent_without_a_field(data_dir: Path, conninfo: str) -> None:
    async with judged_gateway(data_dir, conninfo) as judged:
        await judged.enforce(direction="request")
        assert await _salts(judged, "cache_salt", ["one"]) == [None]
