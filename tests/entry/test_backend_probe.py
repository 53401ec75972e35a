"""Tests the check whether an address can be reached, and its messages about invalid addresses."""

from tests.support.tables import each
from tests.support.upstream import Upstream, chat, unused_url
from tollkeeper.entry.backend_probe import reach


async def test_an_address_that_answers() -> None:
    async with Upstream(chat()) as upstream:
        found = await reach(upstream.url, 5)
    assert (found.ok, found.detail) == (True, f"{upstream.url} accepts connections")


async def test_an_address_that_nobody_listens_at() -> None:
    found = await reach(unused_url(), 5)
    assert not found.ok
    assert "Connection refused" in found.detail


@each(
    ("url", "words"),
    [
        ("http://:80/v1", "names no host"),
        ("http://user:hush@host/v1", "'http://***@host/v1' must have no user"),
        ("http://host:hush/v1", "'http://host:***/v1' is not an http or https address"),
        ("ftp://user:hush@host", "must start with http:// or https://"),
    ],
)
async def test_an_address_that_no_call_can_be_made_to(url: str, words: str) -> None:
    found = await reach(url, 5)
    assert not found.ok
    assert words in found.detail
    assert "hush" not in found.detail
