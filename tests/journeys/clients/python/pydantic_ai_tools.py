"""Runs pydantic-ai's agent over chat and Responses: it calls a tool until the model has seen enough, and
is then thanked."""

import asyncio
import json
import os
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

PLACES: list[str] = []


def look(place: str) -> str:
    """Looks at a place."""
    PLACES.append(place)
    return f"a {place}"


async def turn(agent: Any, asked: str, history: list[Any], *, streamed: bool) -> Any:
    if not streamed:
        result = await agent.run(asked, message_history=history)
        return result.output, result.all_messages()
    async with agent.run_stream(asked, message_history=history) as result:
        heard = [piece async for piece in result.stream_text(delta=True)]
        return "".join(heard), result.all_messages()


async def converse(model: Any, *, streamed: bool) -> dict[str, Any]:
    PLACES.clear()
    agent = Agent(model, tools=[look], instructions="Look around, then tell.")
    text, history = await turn(agent, "Look around.", [], streamed=streamed)
    farewell, _ = await turn(agent, "Thanks.", history, streamed=streamed)
    return {"places": list(PLACES), "text": text, "farewell": farewell}


async def main() -> None:
    told = {}
    for wire, kind in {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}.items():
        model = kind(os.environ["MODEL"])
        told[wire] = await converse(model, streamed=False)
        told[f"{wire} streamed"] = await converse(model, streamed=True)
    json.dump(told, sys.stdout)


asyncio.run(main())
