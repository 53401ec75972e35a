"""Runs a real OpenID Connect provider as a separate process: `oidc-provider-mock`.

The claims of a user replace the provider's own claims in the ID token. So a test can get a token with
a wrong audience or a past expiry time and a valid signature.
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
from tollkeeper.setup.services import Services
from tollkeeper.setup.settings import Settings

_START_S = 60
_ROLES = {"admins": "owner", "daily": "operator", "readers": "viewer", "tenants": "organization"}


@dataclass
class Provider:
    port: int

    @property
    def issuer(self) -> str:
        # Not the console's host, so that the browser's rules for cross-site cookies apply.
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
    """Returns the same settings, with sign-in through this provider."""
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
async def console_with_provider(
    site: ConsoleSite, issuer: str, *, services: Services | None = None, **more: Any
) -> AsyncIterator[str]:
    """Serves a console that uses this provider, on a free port, and yields its URL."""
    port = free_port()
    settings = with_provider(site.settings, issuer, **more)
    async with serving_console(settings, services or site.services, port=port) as address:
        yield address
