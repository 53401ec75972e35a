"""Sends messages with whatever Anthropic SDK is installed here: a loop of tools, and refusals."""

import json
import os
import sys
from typing import Any

import anthropic

MODEL = os.environ["MODEL"]
TOOL: Any = {
    "name": "look",
    "description": "Looks at a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}


def main() -> None:
    # Older ones do not read their address from the environment.
    client = anthropic.Anthropic(base_url=os.environ["ANTHROPIC_BASE_URL"], max_retries=0)
    told = {
        "version": anthropic.__version__,
        "whole": loop(client, streamed=False),
        "streamed": loop(client, streamed=True),
        "unknown": refusal(client, model="nobody"),
        "too_long": refusal(client, max_tokens=4096),
    }
    json.dump(told, sys.stdout)


def loop(client: anthropic.Anthropic, *, streamed: bool) -> dict[str, Any]:
    """Runs the tool that the model calls until it calls none."""
    turns: list[Any] = [{"role": "user", "content": "What is there?"}]
    tokens = 0
    for _ in range(5):
        answer = ask(client, turns, streamed=streamed)
        # Of a stream, the oldest ones read only the output at its end.
        tokens += answer.usage.output_tokens
        blocks = [block.model_dump(exclude_none=True) for block in answer.content]
        turns.append({"role": "assistant", "content": blocks})
        used = [block for block in answer.content if block.type == "tool_use"]
        if not used:
            break
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": str(block.input)}
            for block in used
        ]
        turns.append({"role": "user", "content": results})
    return {"text": blocks[-1]["text"], "stop_reason": answer.stop_reason, "tokens": tokens}


def ask(client: anthropic.Anthropic, turns: list[Any], *, streamed: bool) -> Any:
    asked: Any = {"model": MODEL, "max_tokens": 1000, "messages": turns, "tools": [TOOL]}
    if not streamed:
        return client.messages.create(**asked)
    with client.messages.stream(**asked) as answering:
        for _ in answering:
            pass
        return answering.get_final_message()


def refusal(client: anthropic.Anthropic, **changes: Any) -> dict[str, Any] | None:
    turns: Any = [{"role": "user", "content": "Hello"}]
    try:
        client.messages.create(**{"model": MODEL, "max_tokens": 9, "messages": turns, **changes})
    except anthropic.APIStatusError as exc:
        error = exc.response.json()["error"]
        return {"kind": type(exc).__name__, "status": exc.status_code, "param": error["param"]}
    return None


main()
