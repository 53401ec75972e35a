"""Starts a gateway for each protocol of the recorded exchanges. Its upstream answers as recorded."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.journeys.exchanges.exchange import Exchange
from tests.support.constants import backend_constants
from tests.support.scripted_gateway import ScriptedGateway, scripted_gateway
from tests.support.two_replicas import ORDINARY
from tests.support.upstream import Upstream

# The credential setting for each native protocol. The providers' token counts are not used here,
# so that holds are based on estimates for all protocols.
_CREDENTIALS = {
    "messages": "x-api-key",
    "gemini": "x-goog-api-key",
    "converse": "bearer",
    "bedrock_messages": "bearer",
}


@asynccontextmanager
async def exchange_gateways(
    data_dir: Path,
    conninfo: str,
    models: Mapping[str, dict[str, Any]],
    exchanges: Iterable[Exchange] = (),
) -> AsyncIterator[dict[str, ScriptedGateway]]:
    """Yields gateways by protocol. `models` has the model settings of each protocol. An exchange with its
    own settings has its own gateway, by the exchange's name."""
    found = {}
    wanted = [(protocol, protocol, model, _backend(protocol)) for protocol, model in models.items()]
    for exchange in exchanges:
        model, backend = exchange.settings["model"], exchange.settings["backend"]
        if model or backend:
            protocol = exchange.protocol
            settings = ({**models[protocol], **model}, {**_backend(protocol), **backend})
            wanted.append((exchange.name, protocol, *settings))
    async with AsyncExitStack() as stack:
        for name, protocol, model, backend in wanted:
            ordinary = ORDINARY[protocol]
            upstream = await stack.enter_async_context(Upstream(ordinary()))
            running = scripted_gateway(
                data_dir,
                conninfo,
                upstream,
                # Enough for the holds of all exchanges.
                credit=10**15,
                ordinary=ordinary,
                backend=backend,
                model=model,
                # Many exchanges fail, and none of them may eject the upstream.
                changed_constants=backend_constants(failures_to_eject=1_000_000),
            )
            found[name] = await stack.enter_async_context(running)
        yield found


def _backend(protocol: str) -> dict[str, Any]:
    backend: dict[str, Any] = {"protocol": protocol}
    if protocol in _CREDENTIALS:
        backend |= {"tokenize_path": "none", "credential": _CREDENTIALS[protocol]}
    return backend
