"""Makes calls with the installed version of Anthropic's SDK: tool loops, a token count and calls that
are refused."""

import json
import os
import sys
from typing import Any

import anthropic

MODEL = os.environ["MODEL"]
HELLO: Any = {"role": "user", "content": "Hello"}
TOOL: Any = {
    "name": "look",
    "description": "Looks at a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}


def main() -> None:
    # Older SDKs do not read the address from the environment.
    client = anthropic.Anthropic(base_url=os.environ["ANTHROPIC_BASE_URL"], max_retries=0)
    stranger = client.with_options(api_key="nobody")
    counted = client.messages.count_tokens(model=MODEL, messages=[HELLO])
    told: dict[str, Any] = {"counted": counted.input_tokens}
    for way in ("whole", "streamed"):
        streamed = way == "streamed"
        told[way] = {
            "loop": loop(client, streamed=streamed),
            "unknown": refusal(client, streamed=streamed, model="nobody"),
            "too_long": refusal(client, streamed=streamed, max_tokens=4096),
            "stranger": refusal(stranger, streamed=streamed),
        }
    json.dump(told, sys.stdout)


def loop(client: anthropic.Anthropic, *, streamed: bool) -> dict[str, Any]:
    """Runs the tool that the model calls until it calls none."""
    turns: list[Any] = [{"role": "user", "content": "What is there?"}]
    tokens = 0
    for _ in range(5):
        asked = {"model": MODEL, "max_tokens": 1000, "messages": turns, "tools": [TOOL]}
        answer = ask(client, asked, streamed=streamed)
        # At the end of a stream, the oldest SDKs read only the output tokens.
        tokens += answer.usage.output_tokens
        blocks = [block.model_dump(exclude_none=True) for block in answer.content]
        turns.append({"role": "assistant", "content": blocks})
        used = [block for block in answer.content if block.type == "tool_use"]
        if not used:
            break
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": block.input["place"]}
            for block in used
        ]
        turns.append({"role": "user", "content": results})
    return {"text": blocks[-1]["text"], "stop_reason": answer.stop_reason, "tokens": tokens}


def ask(client: anthropic.Anthropic, asked: Any, *, streamed: bool) -> Any:
    if not streamed:
        return client.messages.create(**asked)
    with client.messages.stream(**asked) as answering:
        for _ in answering:
            pass
        return answering.get_final_message()


def refusal(
    client: anthropic.Anthropic, *, streamed: bool, **changes: Any
) -> dict[str, Any] | None:
    asked = {"model": MODEL, "max_tokens": 9, "messages": [HELLO], **changes}
    try:
        ask(client, asked, streamed=streamed)
    except anthropic.APIStatusError as exc:
        error = exc.response.json()["error"]
        return {"kind": type(exc).__name__, "status": exc.status_code, "param": error["param"]}
    return None


main()
