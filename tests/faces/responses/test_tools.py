"""Tests how tools and `tool_choice` are translated for a chat backend and shown in the result."""

from typing import Any

from tests.support.gateway import assert_error
from tests.support.responses_answers import respond, sent
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.tables import each

LOOK = {
    "type": "function",
    "name": "look",
    "description": "Looks around.",
    "parameters": {"type": "object", "properties": {"far": {"type": "boolean"}}},
    "strict": True,
}
LEAP = {"type": "function", "name": "leap"}
SEARCH = {"type": "web_search", "search_context_size": "low"}
CHAT_LOOK = {
    "type": "function",
    "function": {key: LOOK[key] for key in ("name", "description", "parameters", "strict")},
}
CHAT_LEAP = {"type": "function", "function": {"name": "leap"}}
TOOL_FIELDS = {"tools", "tool_choice", "parallel_tool_calls", "web_search_options"}


async def tool_fields(
    scripted: ScriptedGateway, *tools: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    request = await sent(scripted, tools=list(tools), **fields)
    return {name: request[name] for name in TOOL_FIELDS & set(request)}


async def test_functions_are_nested(scripted: ScriptedGateway) -> None:
    found = await tool_fields(scripted, LOOK, LEAP, parallel_tool_calls=False)
    assert found == {"tools": [CHAT_LOOK, CHAT_LEAP], "parallel_tool_calls": False}


@each("choice", ["none", "auto", "required"])
async def test_choice_by_word(scripted: ScriptedGateway, choice: str) -> None:
    found = await tool_fields(scripted, LOOK, tool_choice=choice)
    assert found == {"tools": [CHAT_LOOK], "tool_choice": choice}


async def test_choice_of_a_function(scripted: ScriptedGateway) -> None:
    found = await tool_fields(
        scripted, LOOK, LEAP, tool_choice={"type": "function", "name": "leap"}
    )
    assert found == {
        "tools": [CHAT_LOOK, CHAT_LEAP],
        "tool_choice": {"type": "function", "function": {"name": "leap"}},
    }


@each("mode", ["auto", "required"])
async def test_allowed_tools_are_those_that_are_offered(
    scripted: ScriptedGateway, mode: str
) -> None:
    allowed = {
        "type": "allowed_tools",
        "mode": mode,
        "tools": [{"type": "function", "name": "leap"}],
    }
    found = await tool_fields(scripted, LOOK, LEAP, SEARCH, tool_choice=allowed)
    assert found == {"tools": [CHAT_LEAP], "tool_choice": mode}


async def test_without_tools_a_choice_asks_for_nothing(scripted: ScriptedGateway) -> None:
    assert await tool_fields(scripted, tool_choice="auto", parallel_tool_calls=True) == {}


@each(
    "kind",
    ["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"],
)
async def test_web_search_is_an_option_of_chat(scripted: ScriptedGateway, kind: str) -> None:
    place = {"type": "approximate", "city": "Bern", "country": None}
    found = await tool_fields(scripted, LOOK, {**SEARCH, "type": kind, "user_location": place})
    assert found == {
        "tools": [CHAT_LOOK],
        "web_search_options": {
            "search_context_size": "low",
            "user_location": {"type": "approximate", "approximate": {"city": "Bern"}},
        },
    }


ALLOWED_SEARCH = {"type": "allowed_tools", "tools": [{"type": "web_search"}]}


async def test_a_search_may_be_the_only_allowed_tool(scripted: ScriptedGateway) -> None:
    found = await tool_fields(scripted, LOOK, SEARCH, tool_choice=ALLOWED_SEARCH)
    assert found == {"web_search_options": {"search_context_size": "low"}}


@each(
    ("tools", "choice"),
    [
        ([SEARCH], "required"),
        ([LOOK, SEARCH], {"type": "web_search_preview"}),
        ([LOOK, SEARCH], {**ALLOWED_SEARCH, "mode": "required"}),
    ],
    ids=["word", "named", "allowed"],
)
async def test_a_chat_backend_cannot_force_a_search(
    scripted: ScriptedGateway, tools: list[dict[str, Any]], choice: object
) -> None:
    answer = await respond(scripted, tools=tools, tool_choice=choice)
    assert_error(answer, 501, "not_implemented", "tool_choice")


async def test_no_tool_may_be_chosen_and_so_no_search(scripted: ScriptedGateway) -> None:
    """A chat backend has a search in its own field, to which `tool_choice` does not apply."""
    assert await tool_fields(scripted, SEARCH, tool_choice="none") == {}
    found = await tool_fields(scripted, LOOK, SEARCH, tool_choice="none")
    assert found == {"tools": [CHAT_LOOK], "tool_choice": "none"}


async def test_result_shows_tools_as_published(scripted: ScriptedGateway) -> None:
    choice = {"type": "function", "name": "leap"}
    answer = await respond(scripted, tools=[LOOK, LEAP, SEARCH], tool_choice=choice)
    shown = answer.json()
    assert shown["tool_choice"] == choice
    assert shown["parallel_tool_calls"] is True
    assert shown["tools"] == [
        LOOK,
        {**LEAP, "description": None, "parameters": None, "strict": None},
        SEARCH,
    ]
