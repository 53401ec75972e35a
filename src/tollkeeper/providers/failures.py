"""Converts transport failures to domain errors, and decides whether the replica is at fault."""

import asyncio

from tollkeeper.core.errors import BackendFailed, DeadlineExceeded, TollkeeperError, Unavailable
from tollkeeper.core.port import AnswerReceiver
from tollkeeper.providers.transport.http1 import (
    AnswerTooLarge,
    ConnectFailed,
    ConnectionsExhausted,
    DeadlinePassed,
    HttpFailure,
    PeerSilent,
)


def is_fault_of_replica(error: TollkeeperError | None) -> bool:
    return isinstance(error, BackendFailed) and not error.may_be_client_fault


def may_send_again(error: TollkeeperError, receiver: AnswerReceiver, deadline: float) -> bool:
    """To another replica or backend: the call can't have run, and need not end now."""
    return (
        receiver.replica is None
        and receiver.ends_by is None
        and not error.charged
        and asyncio.get_running_loop().time() < deadline
    )


def domain_error(failure: HttpFailure, *, charged: bool) -> TollkeeperError:
    """`charged`: the backend may have run the call."""
    if isinstance(failure, DeadlinePassed):
        return DeadlineExceeded(charged=charged)
    if isinstance(failure, PeerSilent):
        return DeadlineExceeded("The backend sent no data for too long.", charged=charged)
    if isinstance(failure, ConnectionsExhausted):
        return Unavailable("Every connection to the backend is in use.", retry_after_s=1)
    if isinstance(failure, ConnectFailed):
        return BackendFailed("The backend cannot be reached.", charged=False)
    if isinstance(failure, AnswerTooLarge):
        # Clients can request an answer that exceeds the limit.
        return BackendFailed(
            "The backend's answer is too large.", charged=charged, may_be_client_fault=True
        )
    return BackendFailed("The backend closed the connection.", charged=charged)
