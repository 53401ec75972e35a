"""Makes one call to a backend with the Responses protocol and one fault, and builds its expected usage."""

from typing import Any

from tests.providers.faults import fault as chat_fault
from tests.support.backend_calls import Outcome
from tests.support.upstream import Peer, Verb
from tollkeeper.core.usage import Usage
from tollkeeper.providers.config import WireProtocol


async def fault(verb: Verb, *, streamed: bool = True, **settings: Any) -> Outcome:
    return await chat_fault(verb, streamed=streamed, protocol=WireProtocol.RESPONSES, **settings)


def used(prompt: int = 7, completion_: int = 3, cached: int = 0, reasoning: int = 0) -> Usage:
    return Usage(
        *(prompt, completion_, cached, reasoning),
        prompt_details={"cached_tokens": cached},
        completion_details={"reasoning_tokens": reasoning},
    )


def silent_after(records: list[bytes]) -> Verb:
    """Sends the records, and then nothing until the client disconnects."""

    async def verb(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(b"".join(records))
        await peer.until_left()

    return verb
