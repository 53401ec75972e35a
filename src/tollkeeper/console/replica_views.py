"""Prepares the states of replicas (the addresses of a backend), as gateway processes see them, for
pages."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tollkeeper.console.context import ProbedReplica
from tollkeeper.core.port import ReplicaReport
from tollkeeper.reports.replicas.service import ProcessReport
from tollkeeper.reports.traffic.rule import BackendTraffic


@dataclass(frozen=True, slots=True)
class Badge:
    text: str
    tone: str


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """Describes the state of one replica as one gateway process sees it."""

    process: ProcessReport
    replica: ReplicaReport
    # The Unix time until which the process sends no (further) call to the replica; None if the
    # replica is neither ejected nor probing.
    ejected_until: float | None

    @property
    def badges(self) -> list[Badge]:
        return _badges([self])


class ReplicaViews:
    def __init__(self, processes: Sequence[ProcessReport], now: float) -> None:
        self._views = [
            ReplicaView(process, replica, _ejected_until(process, replica, now))
            for process in processes
            for replica in process.replicas
        ]

    def of_backend(self, backend: str) -> list[ReplicaView]:
        return [view for view in self._views if view.replica.backend == backend]

    def badges(self, backend: str, url: str) -> list[Badge]:
        """Returns badges that combine the states of one replica in all processes."""
        views = self.of_backend(backend)
        if _has_address(url):
            views = [view for view in views if view.replica.url == url]
        return _badges(views)


def traffic_by_replica(
    traffic: Sequence[BackendTraffic], replicas: Sequence[ProbedReplica]
) -> dict[tuple[str, str], list[BackendTraffic]]:
    """Groups traffic by backend and replica. A replica is identified as in `replicas`: by its
    address or name. The identifier is empty for calls that no replica answered."""
    # The name of the embedded server's replica, by backend.
    names = {one.backend: one.url for one in replicas if not _has_address(one.url)}
    found: dict[tuple[str, str], list[BackendTraffic]] = {}
    for one in traffic:
        replica = one.replica and names.get(one.backend, one.replica)
        found.setdefault((one.backend, replica), []).append(one)
    return found


def _has_address(replica: str) -> bool:
    """Tells whether the replica is identified by an address. The embedded model server has a name
    instead, because its address changes with each start. It is the only replica of its backend."""
    return "://" in replica


def _ejected_until(process: ProcessReport, replica: ReplicaReport, now: float) -> float | None:
    if replica.retry_in_s is None:
        return None
    return now - process.age_s + replica.retry_in_s


def _badges(views: Sequence[ReplicaView]) -> list[Badge]:
    if not views:
        return [Badge("not reported by any gateway", "calm")]
    states = Counter(view.replica.state for view in views)
    if states["healthy"] == len(views):
        return [Badge("healthy", "good")]
    badges = []
    for name, count in (
        ("ejected", states["ejected"] + states["probing"]),
        ("down, called because no replica is healthy", states["failing"]),
    ):
        if count:
            where = f" in {count} of {len(views)} processes" if len(views) > 1 else ""
            badges.append(Badge(name + where, "bad"))
    return badges
