"""Tests which URLs and keys the settings of a backend accept, and that secrets are not shown."""

import pytest

from tests.support.backend_calls import make_config
from tests.support.tables import each
from tollkeeper.providers.config import shown_url


@each(
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
        make_config(url)


@each("key", ["", "a b", "a\r\nx-injected: 1", "ż", "a\x00"])
def test_bad_key(key: str) -> None:
    with pytest.raises(ValueError):
        make_config("http://host/v1", api_key=key)


def test_urls_are_distinct_and_some() -> None:
    with pytest.raises(ValueError):
        make_config()
    with pytest.raises(ValueError):
        make_config("http://host/v1", "http://host/v1")


def test_the_key_is_not_shown() -> None:
    assert "hush" not in repr(make_config("http://[::1]:80/v1", api_key="hush"))


@each(
    ("url", "shown"),
    [
        ("http://host:80/v1", "http://host:80/v1"),
        ("https://[::1]:8443/v1", "https://[::1]:8443/v1"),
        ("http://user:hush@host/v1", "http://***@host/v1"),
        ("http://user:hu@sh@host/v1", "http://***@host/v1"),
        ("user:hush@host", "***@host"),
        ("http://host/v1?key=hush", "http://host/v1?***"),
        ("http://host:hush/v1", "http://host:***/v1"),
        ("a+b://user:hush/v1", "a+b://user:***/v1"),
    ],
)
def test_an_address_is_shown_without_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown
