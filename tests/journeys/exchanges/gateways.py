"""A gateway for each protocol of the recorded exchanges, over a server that answers as recorded."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.scripted_gateway import ScriptedGateway, scripted_gateway
from tests.support.two_replicas import ORDINARY
from tests.support.upstream import Upstream

# The key's header of the protocols that are a provider's own. The provider's own count is not asked
# for: the bounds of the others are estimates too.
_CREDENTIALS = {
    "messages": "x-api-key",
    "gemini": "x-goog-api-key",
    "converse": "bearer",
    "bedrock_messages": "bearer",
}


@asynccontextmanager
async def exchange_gateways(
    data_dir: Path, conninfo: str, models: Iterable[tuple[str, dict[str, Any]]]
) -> AsyncIterator[dict[str, ScriptedGateway]]:
    """By protocol; `models` has the settings of the model of each one."""
    found = {}
    async with AsyncExitStack() as stack:
        for protocol, model in models:
            ordinary = ORDINARY[protocol]
            upstream = await stack.enter_async_context(Upstream(ordinary()))
            running = scripted_gateway(
                data_dir,
                conninfo,
                upstream,
                # Enough for the holds of all exchanges.
                credit=10**15,
                ordinary=ordinary,
                backend=_backend(protocol),
                model=model,
            )
            found[protocol] = await stack.enter_async_context(running)
        yield found


def _backend(protocol: str) -> dict[str, Any]:
    # Many exchanges fail, and none of them may rest the upstream.
    backend: dict[str, Any] = {"protocol": protocol, "failures_to_eject": 1_000_000}
    if protocol in _CREDENTIALS:
        backend |= {"tokenizer": "none", "credential": _CREDENTIALS[protocol]}
    return backend
