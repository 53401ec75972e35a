"""Combines a model's backends. A failed call goes to the next one only if it can't have been
charged."""

import asyncio
import random
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tollkeeper.core.catalog import Model, Route
from tollkeeper.core.errors import (
    BackendFailed,
    DeadlineExceeded,
    OptionUnsupported,
    RateLimited,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.core.inference import Call
from tollkeeper.core.port import AnswerReceiver, Backend, BackendHealth
from tollkeeper.providers.failures import may_send_again

# If not `charged`.
_RETRYABLE = (BackendFailed, RateLimited, Unavailable, DeadlineExceeded, OptionUnsupported)


def backend_for(model: Model, backends: Mapping[str, Backend]) -> Backend:
    return FallbackBackend(model, backends) if model.routes else backends[model.backend]


class FallbackBackend:
    def __init__(self, model: Model, backends: Mapping[str, Backend]) -> None:
        self.name = model.backend
        self._routes = model.routes
        self._backends = backends

    async def answer(self, call: Call, receiver: AnswerReceiver, *, deadline: float) -> None:
        last_error: TollkeeperError | None = None
        for route in attempt_order(self._routes, call.affinity):
            backend, call_of_route = self._backend_of(route), call_on(route, call)
            receiver.set_prompts_sent(backend.prompts_sent(call_of_route), call.choices)
            receiver.backend = route.model.backend
            try:
                await backend.answer(call_of_route, receiver, deadline=deadline)
            except _RETRYABLE as error:
                if not may_send_again(error, receiver, deadline):
                    raise
                receiver.sent, last_error = False, error
            else:
                return
        assert last_error is not None, "a model has at least one route"
        raise last_error

    def _backend_of(self, route: Route) -> Backend:
        return self._backends[route.model.backend]

    @property
    def counts_tokens(self) -> bool:
        """Only if all do: one backend's count is no upper limit for another."""
        return all(self._backend_of(route).counts_tokens for route in self._routes)

    @property
    def counts_media(self) -> bool:
        return all(self._backend_of(route).counts_media for route in self._routes)

    def prompts_sent(self, call: Call) -> int:
        return max(
            self._backend_of(route).prompts_sent(call_on(route, call)) for route in self._routes
        )

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        """The largest, because any backend may serve the call. None if one is unknown."""
        if not self.counts_tokens:
            return None
        counting = (
            self._backend_of(route).count_prompt_tokens(call_on(route, call), deadline=deadline)
            for route in self._routes
        )
        counts = await asyncio.gather(*counting)
        known = [count for count in counts if count is not None]
        return max(known) if len(known) == len(counts) else None

    def health(self) -> BackendHealth:
        parts = [self._backend_of(route).health() for route in self._routes]
        return BackendHealth(
            name=self.name,
            ready=any(part.ready for part in parts),
            detail="; ".join(f"{part.name}: {part.detail}" for part in parts),
            replicas={url: state for part in parts for url, state in part.replicas.items()},
        )

    async def start(self) -> None:
        """The owner of the backends does this."""

    async def close(self) -> None:
        """The owner of the backends does this."""


def call_on(route: Route, call: Call) -> Call:
    """Without the gateway's own cache salt if the backend has no field for it. The client's always
    stays."""
    caching = call.prompt.caching
    if caching.salt is None or caching.salt_is_asked or route.model.cache_salt_field:
        return replace(call, model=route.model)
    prompt = replace(call.prompt, caching=replace(caching, salt=None))
    return replace(call, model=route.model, prompt=prompt)


def attempt_order(routes: Sequence[Route], affinity: bytes | None) -> list[Route]:
    """By `order`, then at random by weight. The same affinity key gives the same result, so calls
    find their prompt in the backend's cache."""
    generator = random.Random(affinity)  # noqa: S311 - the order affects only the load of backends
    # The chance of the highest value is then proportional to the weight.
    drawn = [(route, generator.random() ** (1 / route.weight)) for route in routes]
    drawn.sort(key=lambda pair: (pair[0].order, -pair[1]))
    return [route for route, _ in drawn]
