"""Fixtures for identities: a private key, and an environment without a developer's own identity."""

import asyncio
import gc
import os
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.certificates import make_certificate
from tollkeeper.backends.identity.credential import THREAD_NAME


@pytest.fixture(scope="session")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(autouse=True)
def _no_own_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "GCE_", "IDENTITY_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(autouse=True)
async def _collected() -> AsyncIterator[None]:
    """The libraries leave connections to the garbage collector, when their attempt has ended. The loop
    and the executor let go of the last exception a turn later. Objects from before are not searched:
    there are millions of them in a process that has run other tests."""
    gc.freeze()
    yield
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            await asyncio.to_thread(thread.join, 20)
    # An executor's thread keeps its last work until it gets other work.
    await asyncio.to_thread(gc.collect)
    gc.collect()
    gc.unfreeze()


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """For servers that Entra's library trusts: it asks authorities over TLS only."""
    context, certificate = make_certificate(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    return context
