"""Runs LiteLLM's SDK: it calls a function until the model has seen enough, and then thanks the model. It
sends the history back as its own objects."""

import json
import os
import sys
from typing import Any

# Without this setting, the import fetches a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

# Without this setting, LiteLLM prints advice between the results.
litellm.suppress_debug_info = True
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
        },
    },
}


def ask(messages: list[Any], *, streamed: bool) -> Any:
    answer = litellm.completion(
        model=f"openai/{os.environ['MODEL']}",
        api_base=os.environ["OPENAI_BASE_URL"],
        messages=messages,
        tools=[LOOK],
        stream=streamed,
    )
    if streamed:
        answer = litellm.stream_chunk_builder(list(answer), messages=messages)
    return answer.choices[0].message


def converse(*, streamed: bool) -> dict[str, Any]:
    places = []
    messages: list[Any] = [{"role": "user", "content": "Look around."}]
    message = ask(messages, streamed=streamed)
    while message.tool_calls:
        messages.append(message)
        for call in message.tool_calls:
            place = json.loads(call.function.arguments)["place"]
            places.append(place)
            result = {"role": "tool", "tool_call_id": call.id, "content": f"a {place}"}
            messages.append(result)
        message = ask(messages, streamed=streamed)
    messages += [message, {"role": "user", "content": "Thanks."}]
    farewell = ask(messages, streamed=streamed)
    return {"places": places, "text": message.content, "farewell": farewell.content}


json.dump({"chat": converse(streamed=False), "chat streamed": converse(streamed=True)}, sys.stdout)
