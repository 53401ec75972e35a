"""Tests how the fields of a Messages request are translated into the chat request for the tokenizer."""

import json
from typing import Any

import msgspec

from tests.support.backend_calls import MODEL, make_call
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.tables import each
from tests.support.token_counts import BARE, USER, assert_wrapped, count, counted
from tollkeeper.faces.messages.prompt import read_counted_prompt
from tollkeeper.faces.wire import messages as wire
from tollkeeper.providers.chat.wire import ChatWire

TOOL_USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"far": True}}
CHAT_CALL = {
    "id": "t1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"far":true}'},
}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object"}, "description": "Looks."},
}
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


async def messages(
    scripted: ScriptedGateway, *given: dict[str, Any], **fields: Any
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await counted(scripted, messages=list(given), **fields))[
        "messages"
    ]
    return found


async def said(
    scripted: ScriptedGateway, *blocks: dict[str, Any], role: str = "user"
) -> list[dict[str, Any]]:
    return await messages(scripted, {"role": role, "content": list(blocks)})


async def test_plain_text(scripted: ScriptedGateway) -> None:
    request = await counted(scripted, system="Be brief.")
    assert request["model"] == "upstream-chat"
    assert request["messages"] == [{"role": "system", "content": "Be brief."}, USER]


async def test_system_blocks(scripted: ScriptedGateway) -> None:
    one, two = text("Be brief."), {**text("Be kind."), "cache_control": {"type": "ephemeral"}}
    assert (await counted(scripted, system=[one]))["messages"][0]["content"] == "Be brief."
    system = (await counted(scripted, system=[one, two]))["messages"][0]
    assert system == {"role": "system", "content": "Be brief.\nBe kind."}
    assert (await counted(scripted, system=[]))["messages"] == [USER]


async def test_roles(scripted: ScriptedGateway) -> None:
    given = [{"role": role, "content": role} for role in ("user", "assistant", "system", "user")]
    assert await messages(scripted, *given) == given


async def test_texts_are_a_string_with_a_line_for_each(scripted: ScriptedGateway) -> None:
    """Some servers reject a list of texts, and joined without a separator, two words become one."""
    texts = (text("Please do not"), text("e-mail me."))
    for role in ("user", "assistant", "system"):
        assert await messages(scripted, {"role": role, "content": [text("Hi")]}, USER) == [
            {"role": role, "content": "Hi"},
            USER,
        ]
        assert await messages(scripted, {"role": role, "content": texts}, USER) == [
            {"role": role, "content": "Please do not\ne-mail me."},
            USER,
        ]


async def test_images(scripted: ScriptedGateway) -> None:
    url = {"type": "url", "url": "https://a.example/b.png"}
    [message] = await said(
        scripted, {"type": "image", "source": PNG}, {"type": "image", "source": url}
    )
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
    ]


async def test_documents(scripted: ScriptedGateway) -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "words"}
    nested = {"type": "content", "content": [text("inner")]}
    string = {"type": "content", "content": "string"}
    blocks = [
        {"type": "document", "source": plain, "title": "T", "context": "C"},
        {"type": "document", "source": nested},
        {"type": "document", "source": string},
        {"type": "document", "source": PDF},
    ]
    [message] = await said(scripted, *blocks)
    assert message["content"] == [
        *(text(words) for words in ("T", "C", "words", "inner", "string")),
        {
            "type": "file",
            "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "document"},
        },
    ]


async def test_search_result(scripted: ScriptedGateway) -> None:
    block = {"type": "search_result", "source": "s", "title": "t", "content": [text("found")]}
    [message] = await said(scripted, block)
    assert message["content"] == "s\nt\nfound"


async def test_answer_with_thinking_and_call(scripted: ScriptedGateway) -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    [message] = await said(
        scripted, thinking, hidden, text("Let me see."), TOOL_USE, role="assistant"
    )
    assert message == {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning": "Hm.",
        "reasoning_content": "Hm.",
        "tool_calls": [CHAT_CALL],
    }


async def test_tool_results_come_before_what_is_said(scripted: ScriptedGateway) -> None:
    answer = {"role": "assistant", "content": [TOOL_USE]}
    results = [
        text("And now?"),
        {"type": "tool_result", "tool_use_id": "t1", "content": "a lake"},
        {"type": "tool_result", "tool_use_id": "t2", "content": [text("far")], "is_error": True},
        {"type": "tool_result", "tool_use_id": "t3"},
        {"type": "tool_result", "tool_use_id": "t4", "content": [text("a"), text("b")]},
    ]
    assert await messages(scripted, USER, answer, {"role": "user", "content": results}) == [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
        {"role": "tool", "tool_call_id": "t1", "content": "a lake"},
        {"role": "tool", "tool_call_id": "t2", "content": "far"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "tool", "tool_call_id": "t4", "content": "a\nb"},
        {"role": "user", "content": "And now?"},
    ]


@each(
    "kind",
    [
        *("server_tool_use", "web_search_tool_result", "web_fetch_tool_result"),
        *("code_execution_tool_result", "bash_code_execution_tool_result"),
        *("text_editor_code_execution_tool_result", "tool_search_tool_result"),
        "container_upload",
    ],
)
async def test_what_server_tools_wrote_counts_as_its_text(
    scripted: ScriptedGateway, kind: str
) -> None:
    block = {"type": kind, "tool_use_id": "t", "content": [{"url": "https://a.example"}]}
    [message] = await said(scripted, block, role="assistant")
    assert "https://a.example" in message["content"]


async def test_tools(scripted: ScriptedGateway) -> None:
    custom = {**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}
    for tool in (TOOL, custom):
        assert (await counted(scripted, tools=[tool]))["tools"] == [CHAT_TOOL]
    assert "tools" not in await counted(scripted, tools=[])


@each(
    ("choice", "chat_choice"),
    [
        (None, None),
        ({"type": "auto"}, None),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        (
            {"type": "tool", "name": "look"},
            {"type": "function", "function": {"name": "look"}},
        ),
    ],
)
def test_choice_of_a_tool(choice: object, chat_choice: object) -> None:
    """The choice may change the prompt that a template renders, so the chat request contains it."""

    def tokenized(tools: list[dict[str, Any]]) -> Any:
        given = {"model": "m", "messages": [USER], "tool_choice": choice, "tools": tools}
        body = msgspec.json.decode(json.dumps(given), type=wire.TokenCountRequest)
        prompt = read_counted_prompt(body, MODEL, frozenset(), lambda _: None)
        call = msgspec.structs.replace(make_call(), prompt=prompt)
        return json.loads(ChatWire().encode_request(call, stream=False, extra={}))

    fields = tokenized([TOOL])
    assert fields["tools"] == [CHAT_TOOL]
    assert fields.get("tool_choice") == chat_choice
    assert "tool_choice" not in tokenized([])


@each(
    "kind",
    [
        *("web_search_2025_03_05", "web_fetch_2025_03_05"),
        *("web_search_20250305", "web_fetch_20250910"),
    ],
)
async def test_web_tools_are_accepted_and_render_nothing(
    scripted: ScriptedGateway, kind: str
) -> None:
    tool = {"type": kind, "name": kind.rsplit("_", 1)[0], "max_uses": 3}
    assert (await counted(scripted, tools=[TOOL, tool]))["tools"] == [CHAT_TOOL]


async def test_unpublished_names_of_web_tools_are_refused(
    scripted: ScriptedGateway, estimating: ScriptedGateway
) -> None:
    async def taken(at: ScriptedGateway, kind: str) -> bool:
        answered = await count(at, tools=[{"type": kind, "name": "web"}])
        if answered.status_code != 200:
            assert_wrapped(answered, 501, "not_implemented", "tools[0]")
        return answered.status_code == 200

    given, published = "web_search_2025_03_05", "web_search_20250305"
    other = await estimating.with_tenant(credit=0)
    kinds = (given, published, "web_search_20991231")
    for tenant in (scripted, other):
        assert [await taken(tenant, kind) for kind in kinds] == [True, True, False]


async def test_refusal_names_the_tool_and_what_is_supported(scripted: ScriptedGateway) -> None:
    refused = await count(scripted, tools=[TOOL, {"type": "bash_20250124", "name": "bash"}])
    assert_wrapped(refused, 501, "not_implemented", "tools[1]")
    message = refused.json()["error"]["message"]
    assert "'bash' of type bash_20250124" in message
    assert "custom, " in message
    assert "web_search_2025_03_05" in message


async def test_thinking_reaches_a_template_that_knows_it(scripted: ScriptedGateway) -> None:
    for thinking, thinks in (
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive"}, True),
        ({"type": "between_tools"}, True),
        ({"type": "disabled"}, False),
    ):
        request = await counted(scripted, thinking=thinking)
        assert request["chat_template_kwargs"] == {"enable_thinking": thinks}


async def test_what_does_not_change_the_prompt(scripted: ScriptedGateway) -> None:
    plain = await counted(scripted)
    assert plain == await counted(
        scripted,
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        output_config={"effort": "max", "format": None},
        cache_control={"type": "ephemeral", "ttl": "1h"},
        speed="fast",
    )
    nothing = ("system", "tools", "tool_choice", "thinking", "output_config", "cache_control")
    assert plain == await counted(scripted, **dict.fromkeys((*nothing, "speed")))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model"),
    ({"model": "m" * 201}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{**USER, "name": "Eve"}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type"),
    (
        {"messages": [USER, {"role": "user", "content": [{"type": "song"}]}]},
        "messages[1].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}],
                }
            ]
        },
        "messages[0].content[0].source.file_id",
    ),
    ({"system": 5}, "system"),
    (
        {"messages": [{"role": "assistant", "content": [{**TOOL_USE, "input": "far"}]}]},
        "messages[0].content[0].input",
    ),
    ({"tools": [{"name": "look"}]}, "tools[0].input_schema"),
    ({"tools": [{"type": "telepathy", "name": "look"}]}, "tools[0].type"),
    ({"tools": [TOOL, {"type": "bash_2025", "name": "bash"}]}, "tools[1].type"),
    ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "ultra"}}, "output_config.effort"),
    ({"cache_control": {"type": "eternal"}}, "cache_control.type"),
    ({"speed": "slow"}, "speed"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"stream": True}, "stream"),
    ({"mcp_servers": []}, "mcp_servers"),
]


@each(("fields", "param"), REFUSED)
async def test_refused(scripted: ScriptedGateway, fields: dict[str, Any], param: str) -> None:
    assert_wrapped(await count(scripted, **fields), 400, "invalid_request", param)


@each(
    ("fields", "param"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"tools": [{"type": "tool_search_tool_regex", "name": "t"}]}, "tools[0]"),
        ({"tools": [{"type": "memory_20991231", "name": "m"}]}, "tools[0]"),
        ({"tools": [TOOL, {"type": "computer_toolset_20260801"}]}, "tools[1]"),
        ({"model": BARE, "tools": [TOOL]}, "tools"),
        (
            {
                "model": BARE,
                "messages": [{"role": "user", "content": [{"type": "image", "source": PNG}]}],
            },
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "document", "source": {"type": "url", "url": "http://a"}}
                        ],
                    }
                ]
            },
            "messages[0].content[0].source.url",
        ),
    ],
)
async def test_unsupported(scripted: ScriptedGateway, fields: dict[str, Any], param: str) -> None:
    assert_wrapped(await count(scripted, **fields), 501, "not_implemented", param)
