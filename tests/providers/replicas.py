"""Starts several upstreams, which are the replicas of one backend."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from msgspec.structs import replace

from tests.support.backend_calls import Outcome, make, make_call, routed
from tests.support.upstream import Upstream, Verb, chat
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.affinity import rendezvous_order
from tollkeeper.providers.routing import RoutedBackend


async def upstreams(stack: AsyncExitStack, count: int, verb: Verb) -> list[Upstream]:
    return [await stack.enter_async_context(Upstream(verb)) for _ in range(count)]


def calls_of(*servers: Upstream) -> list[int]:
    return [len(server.requests) for server in servers]


@dataclass(frozen=True)
class Pair:
    """Contains a backend with two replicas. A test observes `watched`, and `spare` is the other one."""

    backend: RoutedBackend
    watched: Upstream
    spare: Upstream

    @property
    def state(self) -> str:
        return self.backend.health().replicas[self.watched.url]

    def preferring(self, server: Upstream) -> bytes:
        """Returns an affinity key with which calls go to this replica first."""
        urls = [self.watched.url, self.spare.url]
        return next(
            key
            for key in (number.to_bytes(4, "big") for number in range(1000))
            if rendezvous_order(key, urls)[0] == server.url
        )

    async def call(
        self,
        server: Upstream | None = None,
        *,
        organization: UUID | None = None,
        deadline_s: float = 10.0,
        **fields: Any,
    ) -> Outcome:
        """Makes a call that goes to the given replica first; by default to the watched replica. Each
        call is of a new organization, unless the organization is given."""
        call = make_call(affinity=self.preferring(server or self.watched), **fields)
        owner = OrganizationId(organization or uuid4())
        return await make(self.backend, replace(call, organization_id=owner), deadline_s=deadline_s)


@asynccontextmanager
async def pair(*verbs: Verb, **settings: Any) -> AsyncIterator[Pair]:
    """Starts a `Pair`. The watched replica acts by `verbs`; the spare replica answers every call."""
    async with (
        Upstream(*verbs) as watched,
        Upstream(chat()) as spare,
        routed(watched.url, spare.url, **{"retries": 0, **settings}) as backend,
    ):
        yield Pair(backend, watched, spare)
