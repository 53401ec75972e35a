"""Fixtures for the identity tests: a private key, TLS, and an environment without the developer's identity."""

import asyncio
import gc
import os
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.providers.conftest import new_files, open_files
from tests.support.certificates import make_certificate
from tollkeeper.providers.identity.credential import THREAD_NAME


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
    """Collects the connections that the libraries leave to the garbage collector.

    Collects until none is left, because the attempt's thread can hold its exception a little longer than the
    test. Does not search objects that existed before the test: a process that has run other tests has
    millions of them.
    """
    gc.freeze()
    files_before = open_files()
    yield
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            await asyncio.to_thread(thread.join, 20)
    # If something is left after these attempts, the check after every backend test shows it.
    for _ in range(100):
        gc.collect()
        if not new_files(files_before):
            break
        await asyncio.sleep(0.01)
    gc.unfreeze()


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Returns a context for servers that azure-identity trusts, because it uses only TLS for authorities."""
    context, certificate = make_certificate(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    return context
