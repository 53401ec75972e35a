"""Converts transport failures to domain errors, and decides whether a replica is at fault."""

from tollkeeper.backends.transport.http1 import (
    AnswerTooLarge,
    ConnectFailed,
    ConnectionsExhausted,
    DeadlinePassed,
    HttpFailure,
    PeerSilent,
)
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    TollkeeperError,
    Unavailable,
)


def is_fault_of_replica(error: TollkeeperError | None) -> bool:
    """Tells whether an error indicates that its replica is unhealthy."""
    return isinstance(error, BackendFailed) and not error.blameless


def domain_error(failure: HttpFailure, *, charged: bool) -> TollkeeperError:
    if isinstance(failure, DeadlinePassed):
        return DeadlineExceeded(charged=charged)
    if isinstance(failure, PeerSilent):
        return DeadlineExceeded("The backend fell silent.", charged=charged)
    if isinstance(failure, ConnectionsExhausted):
        return Unavailable("Every connection to the backend is in use.", retry_after_s=1)
    if isinstance(failure, ConnectFailed):
        return BackendFailed("The backend cannot be reached.", charged=False)
    if isinstance(failure, AnswerTooLarge):
        # A client can ask for more than is allowed, so a large answer does not indicate an
        # unhealthy replica.
        return BackendFailed("The backend's answer is too large.", charged=charged, blameless=True)
    return BackendFailed("The backend closed the connection.", charged=charged)
