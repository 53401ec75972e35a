"""A real OpenID Connect provider in a process of its own: `oidc-provider-mock`.

Claims of a user replace those that the provider would write into the ID token, so that a test can ask
for a wrong audience or an expired token, properly signed.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from bench.ports import free_port

from tests.support.console_site import ConsoleSite, serving_console
from tollkeeper.settings import Settings

_START_S = 60
_ROLES = {"admins": "owner", "daily": "operator", "readers": "viewer", "tenants": "organization"}


@dataclass
class Provider:
    port: int

    @property
    def issuer(self) -> str:
        # Another site than the console's address, so that the browser's rules for cookies count.
        return f"http://localhost:{self.port}"

    async def set_user(self, subject: str, **claims: Any) -> None:
        async with httpx2.AsyncClient(timeout=60) as client:
            answer = await client.put(f"{self.issuer}/users/{subject}", json=claims)
        assert answer.status_code == 204, answer.text


@asynccontextmanager
async def running_provider(port: int) -> AsyncIterator[Provider]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-m", "oidc_provider_mock"),
        *("--port", str(port), "--require-nonce"),
        env={**os.environ, "AUTHLIB_INSECURE_TRANSPORT": "1"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        provider = Provider(port)
        async with asyncio.timeout(_START_S):
            while not await _answers(provider):
                assert process.returncode is None, "the provider has ended"
                await asyncio.sleep(0.1)
        yield provider
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _answers(provider: Provider) -> bool:
    try:
        async with httpx2.AsyncClient(timeout=60) as client:
            answer = await client.get(f"{provider.issuer}/.well-known/openid-configuration")
    except httpx2.TransportError:
        return False
    return answer.status_code == 200


def with_provider(settings: Settings, issuer: str, **more: Any) -> Settings:
    """The same settings, but people sign in with this provider."""
    sign_in = {
        "issuer": issuer,
        "client_id": "the-console",
        "client_secret": "env:CONSOLE_CLIENT_SECRET",
        "roles": _ROLES,
        **more,
    }
    made = Settings.model_validate({"console": {"sign_in": sign_in}}).console.sign_in
    console = settings.console.model_copy(update={"sign_in": made})
    return settings.model_copy(update={"console": console})


@asynccontextmanager
async def console_with_provider(site: ConsoleSite, issuer: str, **more: Any) -> AsyncIterator[str]:
    """A console on a port that the provider is told."""
    port = free_port()
    settings = with_provider(site.settings, issuer, **more)
    async with serving_console(settings, site.services, port=port) as address:
        yield address
