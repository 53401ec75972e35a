"""`tollkeeper backend try` of a backend with the preset of Gemini."""

import asyncio
import json
from pathlib import Path

from tests.support.program import Program, write_config
from tests.support.upstream import Peer, Upstream
from tests.support.upstream_gemini import call_part, generate

_KEY = "key-of-google"
_SETTINGS = """
[[backends]]
name = "gemini"
preset = "gemini"
urls = ["{url}"]

[[models]]
id = "example/gemini"
backend = "gemini"
upstream_model = "gemini-3-flash"
context_length = 4096
max_output_length = 1024
supported_features = ["tools"]
pricing = {{ prompt = "0.000003", completion = "0.000015" }}
"""


async def _answering(peer: Peer) -> None:
    """Calls the tool where there is one."""
    if "tools" in peer.request.json:
        await generate(call_part("c1", "weather", place="Paris"))(peer)
    else:
        await generate()(peer)


async def test_what_works_and_what_it_cost(
    program: Program, tmp_path: Path, data_dir: Path
) -> None:
    async with Upstream(_answering) as upstream:
        config = write_config(tmp_path, data_dir, more=_SETTINGS.format(url=upstream.url))
        made = program.with_config(config).with_environment(GEMINI_API_KEY=_KEY)
        outcome = await asyncio.to_thread(made.run, "backend", "try", "gemini", "--json")
    document = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    verdicts = {row["check"]: row["verdict"] for row in document["data"]}
    assert verdicts == dict.fromkeys(("answer", "stream", "tools", "count"), "works")
    # Three answers of 12 and 5 tokens each.
    assert (document["ok"], document["cost_usd"]) == (True, "0.000333")
    assert {request.headers["x-goog-api-key"] for request in upstream.requests} == {_KEY}
    assert _KEY not in outcome.out
