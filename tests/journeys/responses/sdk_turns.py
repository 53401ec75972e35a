"""Has a conversation with tools over the Responses protocol, with the OpenAI SDK."""

from __future__ import annotations

import json
from typing import Any

from tests.support.sdks import openai

LOOK: openai.types.responses.FunctionToolParam = {
    "type": "function",
    "name": "look",
    "description": "Looks at a place.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string"}},
        "required": ["place"],
        "additionalProperties": False,
    },
    "strict": True,
}


async def look_around(client: openai.AsyncOpenAI, model: str, *, streamed: bool) -> list[Any]:
    """Asks a model that plays `look_then_tell`, and answers its two tool calls. Each request has the
    history in `input`, as objects of the SDK. Returns the whole history."""
    history: list[Any] = [{"role": "user", "content": "Look around."}]
    for _ in range(2):
        response = await turn(client, model, history, streamed=streamed)
        [call] = response.output
        assert isinstance(call, openai.types.responses.ResponseFunctionToolCall)
        history += response.output
        place = json.loads(call.arguments)["place"]
        history.append(
            {"type": "function_call_output", "call_id": call.call_id, "output": f"a {place}"}
        )
    last = await turn(client, model, history, streamed=streamed)
    assert last.output_text == "I saw a room 0 and a room 1."
    return [*history, *last.output]


async def turn(
    client: openai.AsyncOpenAI, model: str, history: list[Any], *, streamed: bool
) -> Any:
    if not streamed:
        return await client.responses.create(model=model, input=history, tools=[LOOK])
    async with client.responses.stream(model=model, input=history, tools=[LOOK]) as events:
        return await events.get_final_response()
