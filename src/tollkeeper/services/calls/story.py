"""What is remembered of a call while it runs, and the activity record that it becomes."""

import time
from dataclasses import dataclass, field

from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.inference import Call
from tollkeeper.domain.metering import Meter
from tollkeeper.services.ledger.admission import Reservation, Settlement
from tollkeeper.services.policies.checks import Evidence


@dataclass(slots=True)
class CallStory:
    call: Call
    operation: str
    started_at_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    started: float = field(default_factory=time.perf_counter)
    first_piece: float | None = None
    ended: float | None = None
    reservation: Reservation | None = None
    meter: Meter | None = None
    replica: str | None = None
    # settled, released or unsettled; none where nothing was reserved
    settlement: str = "none"
    settled: Settlement | None = None
    evidence: Evidence = field(default_factory=Evidence)

    def piece_came(self) -> None:
        if self.first_piece is None:
            self.first_piece = time.perf_counter()

    def end(self) -> None:
        """From now on the story only waits to be written."""
        if self.ended is None:
            self.ended = time.perf_counter()

    def record(self, status: int, error_code: str | None) -> ActivityRecord:
        self.end()
        assert self.ended is not None
        meter, reservation, settled = self.meter, self.reservation, self.settled
        return ActivityRecord(
            request_id=self.call.request_id,
            organization_id=self.call.organization_id,
            project_id=self.call.project_id,
            key_id=self.call.key_id,
            operation=self.operation,
            model=self.call.model.id,
            streamed=self.call.streamed,
            started_at_ms=self.started_at_ms,
            duration_ms=_ms(self.ended - self.started),
            first_piece_ms=None
            if self.first_piece is None
            else _ms(self.first_piece - self.started),
            status=status,
            error_code=error_code,
            finish=None if meter is None else meter.finish,
            usage=None if meter is None or settled is None else meter.usage or meter.estimate(),
            estimated=settled is not None and settled.estimated,
            hold_picousd=None if reservation is None else reservation.hold_picousd,
            cost_picousd=None if settled is None else settled.cost_picousd,
            settlement=self.settlement,
            backend=None if reservation is None else self.call.model.backend,
            replica=self.replica,
            verdicts=tuple(self.evidence.verdicts),
        )


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
