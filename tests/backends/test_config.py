"""What a backend may be configured with."""

import pytest

from tollkeeper.backends.config import BackendConfig


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/v1",
        "http://",
        "host:8000/v1",
        "http://user:pass@host/v1",
        "http://host/v1?x=1",
        "http://host/v1#x",
        "http://host:99999/v1",
        "http://host:x/v1",
        "http://host/a b",
        "http://host/\r\nx: y",
        "http://hóst/v1",
    ],
)
def test_bad_url(url: str) -> None:
    with pytest.raises(ValueError):
        BackendConfig("b", (url,))


@pytest.mark.parametrize("key", ["", "a b", "a\r\nx-injected: 1", "ż", "a\x00"])
def test_bad_key(key: str) -> None:
    with pytest.raises(ValueError):
        BackendConfig("b", ("http://host/v1",), api_key=key)


def test_urls_are_distinct_and_some() -> None:
    with pytest.raises(ValueError):
        BackendConfig("b", ())
    with pytest.raises(ValueError):
        BackendConfig("b", ("http://host/v1", "http://host/v1"))


def test_the_key_is_not_shown() -> None:
    assert "hush" not in repr(BackendConfig("b", ("http://[::1]:80/v1",), api_key="hush"))
