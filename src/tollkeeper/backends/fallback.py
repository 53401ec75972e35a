"""Combines the backends of a model that has several. A failed call is sent to the next backend, but
only if the failed attempt cannot have been charged."""

import asyncio
import random
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tollkeeper.backends.failures import may_send_again
from tollkeeper.backends.port import AnswerReceiver, Backend, BackendHealth
from tollkeeper.domain.catalog import Model, Route
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    OptionUnsupported,
    RateLimited,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.domain.inference import Call

# After these errors, the call may be sent to another backend, if the error is not `charged`.
_RETRYABLE = (BackendFailed, RateLimited, Unavailable, DeadlineExceeded, OptionUnsupported)


def backend_for(model: Model, backends: Mapping[str, Backend]) -> Backend:
    """Returns the backend for calls to a model. If the model has several backends, returns an object
    that tries them in turn."""
    return FallbackBackend(model, backends) if model.routes else backends[model.backend]


class FallbackBackend:
    """Represents all backends of one model as one backend."""

    def __init__(self, model: Model, backends: Mapping[str, Backend]) -> None:
        self.name = model.backend
        self._routes = model.routes
        self._backends = backends

    async def answer(self, call: Call, receiver: AnswerReceiver, *, deadline: float) -> None:
        """Sends the call to one backend after another until a backend answers."""
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
        """Tells whether all backends of the model count tokens. The count of one backend is no upper
        limit for another backend, so a single backend without a tokenizer makes the counts
        useless."""
        return all(self._backend_of(route).counts_tokens for route in self._routes)

    @property
    def counts_media(self) -> bool:
        return all(self._backend_of(route).counts_media for route in self._routes)

    def prompts_sent(self, call: Call) -> int:
        return max(
            self._backend_of(route).prompts_sent(call_on(route, call)) for route in self._routes
        )

    async def count_prompt_tokens(self, call: Call, *, deadline: float) -> int | None:
        """Returns the largest count of all backends, because any of them may serve the call. Returns
        None if the count of a backend is unknown."""
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
        """Does nothing, because the owner of the backends starts them."""

    async def close(self) -> None:
        """Does nothing, because the owner of the backends closes them."""


def call_on(route: Route, call: Call) -> Call:
    """Returns the call for the backend of one route. A cache salt (which separates the prompt caches
    of tenants) that the gateway has added is removed if the backend has no field for it. A cache
    salt that the client asked for is never removed."""
    caching = call.prompt.caching
    if caching.salt is None or caching.salt_is_asked or route.model.cache_salt_field:
        return replace(call, model=route.model)
    prompt = replace(call.prompt, caching=replace(caching, salt=None))
    return replace(call, model=route.model, prompt=prompt)


def attempt_order(routes: Sequence[Route], affinity: bytes | None) -> list[Route]:
    """Returns the routes in the order in which a call tries them: by `order`, and at random by weight
    among routes of the same `order`. Calls with the same affinity key get the same result, so that
    they find their prompt in the same backend's cache."""
    generator = random.Random(affinity)  # noqa: S311 - the order affects only the load of backends
    # With this exponent, the chance to get the highest value is proportional to the weight.
    drawn = [(route, generator.random() ** (1 / route.weight)) for route in routes]
    drawn.sort(key=lambda pair: (pair[0].order, -pair[1]))
    return [route for route, _ in drawn]
