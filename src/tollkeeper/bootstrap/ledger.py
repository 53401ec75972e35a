"""Builds the ledger services, which share one process id, one set of limits and one search for open holds."""

from dataclasses import dataclass
from uuid import UUID, uuid4

from tollkeeper.bootstrap.administration import Administration
from tollkeeper.services.calls.admission import Admission
from tollkeeper.services.ledger.admissibility import Admissibility
from tollkeeper.services.ledger.bulk_resolution import BulkResolution
from tollkeeper.services.ledger.excesses import Excesses
from tollkeeper.services.ledger.ledger import Ledger
from tollkeeper.services.ledger.log_comparison import RequestLogComparison
from tollkeeper.services.ledger.months import LedgerMonths
from tollkeeper.services.ledger.open_holds import OpenHolds
from tollkeeper.services.ledger.recovery import Lease, OwnHolds, Recovery
from tollkeeper.services.ledger.watch import LedgerWatch
from tollkeeper.storage.ledger_store import LedgerStore


@dataclass(frozen=True, slots=True)
class LedgerServices:
    process_id: UUID
    ledger: Ledger
    excesses: Excesses
    admission: Admission
    admissibility: Admissibility
    lease: Lease
    recovery: Recovery
    watch: LedgerWatch
    bulk_resolution: BulkResolution
    request_log_comparison: RequestLogComparison
    months: LedgerMonths


def build_ledger(administration: Administration) -> LedgerServices:
    database = administration.database
    clock, limits = administration.clock, administration.project_limits
    process_id = uuid4()
    excesses = Excesses(database, clock)
    store = LedgerStore(database, process_id, limits)
    ledger = Ledger(store, administration.policy_directory, excesses)
    bulk_resolution = BulkResolution(database, limits)
    # Each search first checks what the one before found.
    open_holds = OpenHolds()
    own_holds = OwnHolds(process_id, ledger.is_open)
    return LedgerServices(
        process_id=process_id,
        ledger=ledger,
        excesses=excesses,
        admission=Admission(ledger, clock),
        admissibility=Admissibility(database, limits, clock),
        lease=Lease(database, process_id),
        recovery=Recovery(database, open_holds=open_holds, own=own_holds),
        watch=LedgerWatch(database, open_holds),
        bulk_resolution=bulk_resolution,
        request_log_comparison=RequestLogComparison(database, process_id, bulk_resolution),
        months=LedgerMonths(database, clock, bulk_resolution),
    )
