"""Runs an agent that calls a function until the model has seen enough, and then thanks the model."""

import asyncio
import json
import os
import sys
from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool

PLACES: list[str] = []
# The default provider reads a model id with a slash as the name of another provider.
CONFIG = RunConfig(model_provider=OpenAIProvider(), tracing_disabled=True)


def look(place: str) -> str:
    """Looks at a place."""
    PLACES.append(place)
    return f"a {place}"


async def main() -> None:
    agent = Agent(
        name="Scout",
        instructions="Look around, then tell.",
        tools=[function_tool(look)],
        model=os.environ["MODEL"],
    )
    told = {way: await conversation(agent, way) for way in ("whole", "streamed")}
    json.dump(told, sys.stdout)


async def conversation(agent: Any, way: str) -> dict[str, Any]:
    PLACES.clear()
    first, events = await turn(agent, "Look around.", way)
    thanked = [*first.to_input_list(), {"role": "user", "content": "Thanks."}]
    second, _ = await turn(agent, thanked, way)
    return {
        "places": list(PLACES),
        "answer": first.final_output,
        "farewell": second.final_output,
        "items": [item.type for item in first.new_items],
        "deltas": [event for event in events if event.endswith(".delta")],
        "usage": first.context_wrapper.usage.total_tokens,
        "requests": first.context_wrapper.usage.requests,
    }


async def turn(agent: Any, asked: Any, way: str) -> tuple[Any, list[str]]:
    if way == "whole":
        return await Runner.run(agent, asked, run_config=CONFIG), []
    result = Runner.run_streamed(agent, asked, run_config=CONFIG)
    events = [
        event.data.type
        async for event in result.stream_events()
        if event.type == "raw_response_event"
    ]
    return result, events


asyncio.run(main())
