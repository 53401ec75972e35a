"""Asks a backend for its models, with the credential of calls. It's free, so a wrong key, path or
model name shows before the first call."""

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.providers.config import BackendConfig, WireProtocol
from tollkeeper.providers.credentials import CredentialKind, OutgoingRequest
from tollkeeper.providers.failures import domain_error
from tollkeeper.providers.refusals import refuses_the_key
from tollkeeper.providers.replica import Replica
from tollkeeper.providers.routing import open_credential_of
from tollkeeper.providers.transport.http1 import Connection, HttpFailure

# Relative to the base address. Without a limit, Anthropic and Google list only some models.
_PATHS = {
    WireProtocol.CHAT: "models",
    WireProtocol.RESPONSES: "models",
    WireProtocol.MESSAGES: "models?limit=1000",
    WireProtocol.GEMINI: "models?pageSize=1000",
}
# Calls there name a deployment, the list names models.
_DEPLOYMENT_HOSTS = ".azure.com"
_BYTES_MAX = 16 << 20
_TIMEOUT_S = 5.0
# Printable. Others can't be in the settings.
_NAME = re.compile(r"[!-~]{1,300}")
_GEMINI_PREFIX = "models/"
_LATEST = "-latest"
# After an alias in the list: a date, a number or a tag.
_VERSION = r"(?:[-@]\d{3,8}|-\d{4}-\d{2}-\d{2}|:.+)"


class ListOutcome(StrEnum):
    LISTED = "listed"
    # There's no request for it, with this protocol or credential.
    NOT_ASKED = "not asked"
    KEY_REFUSED = "key refused"
    # Not at this address; perhaps its path is wrong.
    NO_LIST = "no list"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelList:
    outcome: ListOutcome
    # In the gateway's own words.
    detail: str = ""
    names: frozenset[str] = frozenset()
    # Calls may use only these names.
    is_complete: bool = True

    def has(self, upstream_model: str) -> bool:
        """As listed, as an alias of a dated version (`claude-sonnet-5` for
        `claude-sonnet-5-20260801`), or with a tag or variant after a colon."""
        if not self.is_complete or {upstream_model, upstream_model.partition(":")[0]} & self.names:
            return True
        name = upstream_model.removesuffix(_LATEST)
        version = re.compile(re.escape(name) + (_VERSION if name == upstream_model else "-.+"))
        return any(version.fullmatch(listed) for listed in self.names)


async def list_models(config: BackendConfig, url: str) -> ModelList:
    """Never raises an error of the network or the backend."""
    path = _PATHS.get(config.protocol)
    # AWS signatures here are for POST only.
    if path is None or config.credential is CredentialKind.SIGV4:
        return ModelList(ListOutcome.NOT_ASKED)
    credential = open_credential_of(config)
    replica = Replica(url, config, credential)
    try:
        return await _ask(replica, path)
    except HttpFailure as failure:
        return ModelList(ListOutcome.FAILED, str(domain_error(failure, charged=False)))
    except TollkeeperError as error:
        return ModelList(ListOutcome.FAILED, error.message)
    finally:
        await replica.pool.close()
        await credential.close()


async def _ask(replica: Replica, path: str) -> ModelList:
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
    address = urlsplit(urljoin(f"{replica.url.rstrip('/')}/", path))
    target = f"{address.path}?{address.query}" if address.query else address.path
    outgoing = OutgoingRequest(address.netloc, target, b"")
    headers = await replica.credential.headers_for(outgoing, deadline=deadline)
    head = b"GET %b HTTP/1.1\r\n%baccept: application/json\r\n%b\r\n" % (
        target.encode("ascii"),
        replica.shared_headers,
        headers,
    )
    connection = await replica.pool.acquire(deadline=deadline, organization=None)
    try:
        await connection.send(head, b"", deadline=deadline)
        body = await connection.read_whole(_BYTES_MAX)
        listed = _read(connection, body)
    finally:
        replica.pool.release(connection)
    is_complete = not (address.hostname or "").endswith(_DEPLOYMENT_HOSTS)
    return replace(listed, is_complete=is_complete)


def _read(connection: Connection, body: bytes) -> ModelList:
    status, answer = connection.status, _decoded(body)
    if status in (401, 403) or (status == 400 and refuses_the_key(answer)):
        return ModelList(ListOutcome.KEY_REFUSED, f"status {status}")
    if status in (404, 405, 410, 501):
        return ModelList(ListOutcome.NO_LIST, f"status {status}")
    if status != 200:
        return ModelList(ListOutcome.FAILED, f"status {status}")
    names = _names(answer)
    if names is None:
        return ModelList(ListOutcome.NO_LIST, "an answer that is not a list of models")
    return ModelList(ListOutcome.LISTED, names=frozenset(names))


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None


def _names(answer: Any) -> Collection[str] | None:
    """OpenAI's and Anthropic's `data` with `id`, Google's `models` with `name`, or Together's bare
    list."""
    items = answer
    if isinstance(answer, dict):
        items = answer.get("data") if isinstance(answer.get("data"), list) else answer.get("models")
    if not isinstance(items, list):
        return None
    found = [item.get("id") or item.get("name") for item in items if isinstance(item, dict)]
    return [
        name.removeprefix(_GEMINI_PREFIX)
        for name in found
        if isinstance(name, str) and _NAME.fullmatch(name)
    ]
