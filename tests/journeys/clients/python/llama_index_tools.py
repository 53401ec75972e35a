"""Runs LlamaIndex's agent, which calls a function until the model has seen enough, and is then thanked.
LlamaIndex's OpenAI classes accept only OpenAI's models; OpenAILike accepts any model. The agent keeps
messages but not tool results, so it calls the function again before its farewell."""

import asyncio
import json
import os
import sys
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context
from llama_index.llms.openai_like import OpenAILike

PLACES: list[str] = []


def look(place: str) -> str:
    """Looks at a place."""
    PLACES.append(place)
    return f"a {place}"


async def converse(*, streamed: bool) -> dict[str, Any]:
    PLACES.clear()
    model = OpenAILike(
        model=os.environ["MODEL"],
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=200_000,
    )
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(look)], llm=model, streaming=streamed)
    context = Context(agent)
    first = await agent.run("Look around.", ctx=context)
    places = list(PLACES)
    farewell = await agent.run("Thanks.", ctx=context)
    return {"places": places, "text": str(first), "farewell": str(farewell)}


async def main() -> None:
    told = {
        "chat": await converse(streamed=False),
        "chat streamed": await converse(streamed=True),
    }
    json.dump(told, sys.stdout)


asyncio.run(main())
