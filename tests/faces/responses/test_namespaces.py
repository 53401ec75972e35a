"""Tests functions in namespaces: the model gets a flat name for each, the client gets the name that it sent."""

from typing import Any

from tests.support.gateway import assert_error
from tests.support.responses_answers import both, calls, read_events, respond, retell, sent
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.tables import each
from tollkeeper.faces.responses.namespaces import flat_name

PARAMETERS = {"type": "object", "properties": {"id": {"type": "string"}}}
FIND = {
    "type": "function",
    "name": "find",
    "description": "Finds a customer.",
    "parameters": PARAMETERS,
    "strict": False,
}
DROP = {"type": "function", "name": "drop"}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [FIND, DROP]}
LOOK = {"type": "function", "name": "look"}
CUSTOM = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}


def test_flat_names_are_short_and_different() -> None:
    assert flat_name("crm", "find") == "crm__find"
    long = [flat_name("n" * 60, "f" * 60 + end) for end in ("a", "b")]
    assert [len(name) for name in long] == [64, 64]
    assert long[0] != long[1]
    assert long[0] == flat_name("n" * 60, "f" * 60 + "a")


async def test_functions_reach_the_model_with_both_descriptions(scripted: ScriptedGateway) -> None:
    request = await sent(scripted, tools=[LOOK, CRM])
    assert [tool["function"] for tool in request["tools"]] == [
        {"name": "look"},
        {
            "name": "crm__find",
            "description": "Customers.\n\nFinds a customer.",
            "parameters": PARAMETERS,
            "strict": False,
        },
        {"name": "crm__drop", "description": "Customers."},
    ]


async def test_result_shows_the_namespace(scripted: ScriptedGateway) -> None:
    shown = (await respond(scripted, tools=[CRM])).json()["tools"]
    empty = {"description": None, "parameters": None, "strict": None}
    assert shown == [{**CRM, "tools": [FIND, {**DROP, **empty}]}]


async def test_call_comes_back_with_its_namespace(scripted: ScriptedGateway) -> None:
    called = calls(("call_1", "crm__find", '{"id": "7"}'), ("call_2", "look", "{}"))
    scripted.upstream.play(both(called, finish="tool_calls"))
    whole = (await respond(scripted, tools=[LOOK, CRM])).json()["output"]
    named = [(item["name"], item.get("namespace")) for item in whole]
    assert named == [("find", "crm"), ("look", None)]
    assert "namespace" not in whole[1], "a client would send the null back"

    stream = await respond(scripted, tools=[LOOK, CRM], stream=True)
    events, done = read_events(stream.text)
    assert done
    assert retell(events).names == {0: "find", 1: "look"}
    ended = [event for event in events if event["type"] == "response.output_item.done"]
    shown = [(event["item"]["name"], event["item"].get("namespace")) for event in ended]
    assert shown == named
    arguments = [
        event["name"] for event in events if event["type"].endswith("function_call_arguments.done")
    ]
    assert arguments == ["find", "look"]

    # The client sends the items of the answer back without changes.
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
        for item in whole
    ]
    question = {"role": "user", "content": "Find 7."}
    request = await sent(scripted, tools=[LOOK, CRM], input=[question, *whole, *results])
    replayed = request["messages"][1]["tool_calls"]
    assert [call["function"]["name"] for call in replayed] == ["crm__find", "look"]


@each(
    ("choice", "names", "chosen"),
    [
        (
            {"type": "function", "name": "find", "namespace": "crm"},
            ["look", "crm__find", "crm__drop"],
            {"type": "function", "function": {"name": "crm__find"}},
        ),
        (
            {"type": "allowed_tools", "tools": [{"type": "namespace", "name": "crm"}]},
            ["crm__find", "crm__drop"],
            "auto",
        ),
        (
            {
                "type": "allowed_tools",
                "tools": [{"type": "function", "name": "drop", "namespace": "crm"}],
            },
            ["crm__drop"],
            "auto",
        ),
    ],
    ids=["function", "allowed namespace", "allowed function"],
)
async def test_choice(
    scripted: ScriptedGateway, choice: dict[str, Any], names: list[str], chosen: Any
) -> None:
    request = await sent(scripted, tools=[LOOK, CRM], tool_choice=choice)
    assert [tool["function"]["name"] for tool in request["tools"]] == names
    assert request["tool_choice"] == chosen


REFUSED: list[tuple[list[dict[str, Any]], str, int, str]] = [
    ([{**CRM, "name": ""}], "tools[0].name", 400, "invalid_request"),
    ([{"type": "namespace", "name": "crm"}], "tools[0].tools", 400, "invalid_request"),
    ([{**CRM, "tools": [{}]}], "tools[0].tools[0].type", 400, "invalid_request"),
    ([{**CRM, "tools": [FIND, FIND]}], "tools[0].tools[1].name", 400, "invalid_request"),
    (
        [{"type": "function", "name": "crm__find"}, CRM],
        "tools[1].tools[0].name",
        400,
        "invalid_request",
    ),
    ([{**CRM, "tools": [CUSTOM]}], "tools[0].tools[0]", 501, "not_implemented"),
    ([{**CRM, "tools": [CRM]}], "tools[0].tools[0]", 501, "not_implemented"),
    (
        [{**CRM, "tools": [{**FIND, "defer_loading": True}]}],
        "tools[0].tools[0].defer_loading",
        501,
        "not_implemented",
    ),
]


@each(("tools", "param", "status", "code"), REFUSED)
async def test_refused(
    scripted: ScriptedGateway, tools: list[dict[str, Any]], param: str, status: int, code: str
) -> None:
    assert_error(await respond(scripted, tools=tools), status, code, param)


@each(
    ("tools", "param", "supported"),
    [
        ([CUSTOM], "tools[0]", "function, namespace, web_search"),
        ([LOOK, {**CRM, "tools": [CUSTOM]}], "tools[1].tools[0]", "function."),
    ],
)
async def test_refusal_names_the_tool_and_what_is_supported(
    scripted: ScriptedGateway, tools: list[dict[str, Any]], param: str, supported: str
) -> None:
    refused = await respond(scripted, tools=tools)
    assert_error(refused, 501, "not_implemented", param)
    message = refused.json()["error"]["message"]
    assert "'apply_patch' of type custom" in message
    assert f"Supported types are {supported}" in message


async def test_every_function_is_counted(scripted: ScriptedGateway) -> None:
    """The hold includes the tokens of functions in namespaces."""
    wordy = {**FIND, "description": "customer " * 500}
    held = []
    for tools in ([LOOK], [LOOK, {**CRM, "tools": [wordy]}]):
        entry = await scripted.entry_of(await respond(scripted, tools=tools))
        held.append(entry.prompt_tokens_max)
    assert held[1] - held[0] > 500
