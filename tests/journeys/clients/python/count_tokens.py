"""Counts tokens with the installed version of Anthropic's SDK, and prints the counts and its errors."""

import json
import os
import sys

import anthropic

MODEL = os.environ["MODEL"]
TOOL: anthropic.types.ToolParam = {
    "name": "look",
    "description": "Looks at a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}


def main() -> None:
    # Older SDKs do not read the address from the environment.
    client = anthropic.Anthropic(base_url=os.environ["ANTHROPIC_BASE_URL"], max_retries=0)
    stranger = client.with_options(api_key="nobody")
    counted = client.messages.count_tokens(
        model=MODEL,
        system="Be brief.",
        messages=[{"role": "user", "content": "Look at the lake."}],
        tools=[TOOL],
    )
    in_beta = client.beta.messages.count_tokens(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}]
    )
    told = {
        "version": anthropic.__version__,
        "counted": counted.input_tokens,
        "beta": in_beta.input_tokens,
        "unknown": refusal(client, model="nobody"),
        "empty": refusal(client, messages=[]),
        "stranger": refusal(stranger),
    }
    json.dump(told, sys.stdout)


def refusal(client: anthropic.Anthropic, **changes: object) -> dict[str, object] | None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], **changes}
    try:
        client.messages.count_tokens(**asked)  # type: ignore[arg-type]
    except anthropic.APIStatusError as exc:
        error = exc.response.json()["error"]
        return {
            "kind": type(exc).__name__,
            "status": exc.status_code,
            "type": error["type"],
            "param": error["param"],
            "request_id": exc.request_id,
        }
    return None


main()
