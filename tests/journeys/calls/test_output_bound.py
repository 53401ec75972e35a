"""Tests a model whose maximum output is longer than the interface lets a request ask for."""

from pathlib import Path

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import MODEL, scripted_gateway
from tests.support.upstream import Upstream, chat

_DECLARED = 2_000_000
# The highest `max_tokens` that the interface accepts.
_ASKED_MAX = 999_990


async def test_a_model_that_writes_more_than_a_request_may_ask_for(
    data_dir: Path, conninfo: str
) -> None:
    model = {"context_length": 2 * _DECLARED, "max_output_length": _DECLARED}
    async with (
        Upstream(chat()) as upstream,
        scripted_gateway(
            *(data_dir, conninfo, upstream), model=model, extensions={"model_listing": True}
        ) as scripted,
    ):
        listed = await scripted.gateway.client.get(
            "/v1/models", headers=scripted.tenant.as_customer
        )
        (shown,) = listed.json()["data"]
        assert (shown["id"], shown["max_output_length"]) == (MODEL, _DECLARED)
        answered = await scripted.chat(max_tokens=_ASKED_MAX)
        assert answered.status_code == 200
        assert (await scripted.entry_of(answered)).output_tokens_max == _ASKED_MAX
        refused = await scripted.chat(max_tokens=_ASKED_MAX + 1)
        assert_error(refused, 400, "invalid_request", "max_tokens")
