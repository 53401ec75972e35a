"""Builds the services of the ledger, which share one process id, one set of limits and one list of
open holds."""

from dataclasses import dataclass
from uuid import UUID, uuid4

from tollkeeper.domain.admission import ProjectLimits
from tollkeeper.domain.money import picousd_from_usd
from tollkeeper.services.clock import Clock
from tollkeeper.services.ledger.admissibility import Admissibility
from tollkeeper.services.ledger.admission import Admission
from tollkeeper.services.ledger.bulk_resolution import BulkResolution
from tollkeeper.services.ledger.caps import Caps
from tollkeeper.services.ledger.ledger import Ledger
from tollkeeper.services.ledger.months import LedgerMonths
from tollkeeper.services.ledger.open_holds import OpenHolds
from tollkeeper.services.ledger.recovery import Lease, OwnHolds, Recovery
from tollkeeper.services.ledger.watch import LedgerWatch
from tollkeeper.services.minute_rate import MinuteRate
from tollkeeper.services.policies.directory import PolicyDirectory
from tollkeeper.settings import Settings
from tollkeeper.storage.database import Database
from tollkeeper.storage.ledger_store import LedgerStore


@dataclass(frozen=True, slots=True)
class LedgerServices:
    process_id: UUID
    project_limits: ProjectLimits
    ledger: Ledger
    admission: Admission
    admissibility: Admissibility
    lease: Lease
    recovery: Recovery
    watch: LedgerWatch
    caps: Caps
    bulk_resolution: BulkResolution
    months: LedgerMonths


def build_ledger(
    settings: Settings, database: Database, clock: Clock, directory: PolicyDirectory
) -> LedgerServices:
    process_id, limits = uuid4(), _project_limits(settings)
    ledger = Ledger(LedgerStore(database, process_id, limits), directory)
    bulk_resolution = BulkResolution(database, limits)
    # The watch reports the open holds that a search of the recovery has found.
    open_holds = OpenHolds()
    own_holds = OwnHolds(process_id, ledger.is_open)
    return LedgerServices(
        process_id=process_id,
        project_limits=limits,
        ledger=ledger,
        admission=Admission(ledger, MinuteRate(settings.limits.refused_calls_per_minute), clock),
        admissibility=Admissibility(database, limits, clock),
        lease=Lease(database, process_id, settings.ledger.lease_s),
        recovery=Recovery(database, settings.ledger.lease_s, open_holds, own_holds),
        watch=LedgerWatch(database, open_holds),
        caps=Caps(database, limits, clock=clock),
        bulk_resolution=bulk_resolution,
        months=LedgerMonths(database, clock, bulk_resolution),
    )


def _project_limits(settings: Settings) -> ProjectLimits:
    limits = settings.limits
    bound = settings.ledger.overage_bound_usd
    return ProjectLimits(
        limits.requests_per_minute,
        limits.concurrency,
        overage_bound_picousd=picousd_from_usd(bound) if bound else None,
    )
