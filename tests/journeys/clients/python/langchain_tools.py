"""Runs LangChain's ChatOpenAI over chat and Responses: it calls a tool until the model has seen enough,
and then thanks the model. It sends the history back as its own objects."""

import json
import os
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

PLACES: list[str] = []


def look(place: str) -> str:
    """Looks at a place."""
    PLACES.append(place)
    return f"a {place}"


LOOK = tool(look)


def ask(model: Any, messages: list[Any], *, streamed: bool) -> Any:
    if not streamed:
        return model.invoke(messages)
    whole = None
    for piece in model.stream(messages):
        whole = piece if whole is None else whole + piece
    return whole


def converse(model: Any, *, streamed: bool) -> dict[str, Any]:
    PLACES.clear()
    messages: list[Any] = [HumanMessage("Look around.")]
    message = ask(model, messages, streamed=streamed)
    while message.tool_calls:
        messages.append(message)
        messages += [
            ToolMessage(LOOK.invoke(call["args"]), tool_call_id=call["id"])
            for call in message.tool_calls
        ]
        message = ask(model, messages, streamed=streamed)
    messages += [message, HumanMessage("Thanks.")]
    farewell = ask(model, messages, streamed=streamed)
    return {"places": list(PLACES), "text": message.text, "farewell": farewell.text}


told = {}
for wire in ("chat", "responses"):
    model = ChatOpenAI(model=os.environ["MODEL"], use_responses_api=wire == "responses")
    with_tools = model.bind_tools([LOOK])
    told[wire] = converse(with_tools, streamed=False)
    told[f"{wire} streamed"] = converse(with_tools, streamed=True)
json.dump(told, sys.stdout)
