"""A private key, which takes a while to make, and logs that can be looked at."""

from collections.abc import Iterator

import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import rsa


@pytest.fixture(scope="session")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(autouse=True)
def _logs_are_on() -> Iterator[None]:
    """Also after a command in this process has silenced them."""
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)
