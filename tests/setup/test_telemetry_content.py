"""Tests the span attributes with the content of a call: their form, their size limit, and omitted content."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import make_prompt
from tests.support.tables import each
from tollkeeper.core.access import KeyKind
from tollkeeper.core.inference import Delta, FunctionCallPiece, ToolCallPiece
from tollkeeper.core.prompt import OtherTool, Prompt, Role, Text, Turn
from tollkeeper.setup.telemetry_content import AnswerContent, content_attributes
from tollkeeper.tenants.keys import mint_key

_LIMIT = 16_384
_CUT = "tollkeeper.content.cut"
_INPUT = "gen_ai.input.messages"
_OUTPUT = "gen_ai.output.messages"
_INSTRUCTIONS = "gen_ai.system_instructions"
_TOOLS = "gen_ai.tool.definitions"
_FUNCTION = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def _answered(*deltas: Delta, limit: int = _LIMIT) -> AnswerContent:
    answer = AnswerContent(limit)
    for delta in deltas:
        answer.add([delta])
    return answer


def _content(
    prompt: Prompt, answer: AnswerContent | None = None, limit: int = _LIMIT
) -> dict[str, Any]:
    attributes = content_attributes(prompt, answer or AnswerContent(limit), limit)
    return {
        name: json.loads(value) if isinstance(value, str) else list(value)
        for name, value in attributes.items()
    }


def _user(content: Any) -> Prompt:
    return make_prompt(messages=[{"role": "user", "content": content}])


def test_a_conversation_has_the_form_of_the_conventions() -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
    }
    prompt = make_prompt(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        ],
        tools=[_FUNCTION],
    )
    answer = _answered(
        Delta(0, reasoning="Hm"),
        Delta(0, text="It "),
        Delta(0, reasoning="m."),
        Delta(0, text="rains."),
        Delta(0, finish="stop"),
    )
    assert _content(prompt, answer) == {
        _INSTRUCTIONS: [{"type": "text", "content": "Be brief."}],
        _TOOLS: [{"type": "function", **_FUNCTION["function"]}],  # type: ignore[dict-item]
        _INPUT: [
            {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]},
            {
                "role": "assistant",
                "parts": [
                    {
                        "type": "tool_call",
                        "id": "call_1",
                        "name": "weather",
                        "arguments": {"city": "Paris"},
                    }
                ],
            },
            {
                "role": "tool",
                "parts": [{"type": "tool_call_response", "id": "call_1", "response": "rain"}],
            },
        ],
        _OUTPUT: [
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": "Hmm."},
                    {"type": "text", "content": "It rains."},
                ],
                "finish_reason": "stop",
            }
        ],
    }


def test_tool_calls_and_choices_are_put_together() -> None:
    answer = _answered(
        Delta(1, text="second", finish="length"),
        Delta(0, tool_calls=(ToolCallPiece(0, "a", "first", '{"x"'),)),
        Delta(0, tool_calls=(ToolCallPiece(1, "b", "other", "not JSON"),)),
        Delta(0, tool_calls=(ToolCallPiece(0, arguments=": 1}"),), finish="tool_calls"),
        Delta(2, function_call=FunctionCallPiece("old", "{}")),
    )
    first, second, third = _content(_user("Hello"), answer)[_OUTPUT]
    assert first["finish_reason"] == "tool_call"
    assert [(part["id"], part["name"], part["arguments"]) for part in first["parts"]] == [
        ("a", "first", {"x": 1}),
        ("b", "other", "not JSON"),
    ]
    assert (second["parts"][0]["content"], second["finish_reason"]) == ("second", "length")
    # The third choice has no finish reason.
    assert (third["parts"][0]["name"], third["finish_reason"]) == ("old", "error")


def test_a_text_that_is_cut_says_so() -> None:
    content = _content(_user("a" * 100_000), limit=4096)
    (message,) = content[_INPUT]
    shown = message["parts"][0]["content"]
    assert shown.startswith("a" * 1000)
    assert shown.endswith("… [cut: the text has 100000 characters]")
    assert content[_CUT] == [_INPUT]


def test_a_long_answer_is_kept_from_its_beginning() -> None:
    pieces = [Delta(0, text=f"{number} ") for number in range(10_000)]
    answer = _answered(*pieces, Delta(0, finish="stop"), limit=4096)
    content = _content(_user("Count"), answer, limit=4096)
    (message,) = content[_OUTPUT]
    shown = message["parts"][0]["content"]
    assert shown.startswith("0 1 2 3 ")
    assert shown.endswith("… [cut: the text has 48890 characters]")
    assert message["finish_reason"] == "stop"
    assert content[_CUT] == [_OUTPUT]


def test_the_newest_messages_are_kept() -> None:
    messages = [{"role": "user", "content": f"{number} " + "x" * 500} for number in range(100)]
    content = _content(make_prompt(messages=messages), limit=4096)
    kept = [message["parts"][0]["content"].split()[0] for message in content[_INPUT]]
    assert kept[-1] == "99"
    assert kept == [str(number) for number in range(100 - len(kept), 100)]
    assert 1 < len(kept) < 10
    assert content[_CUT] == [_INPUT]


def test_parameters_that_do_not_fit_are_left_out_whole() -> None:
    large = {"type": "object", "description": "y" * 5000}
    tool = {"type": "function", "function": {"name": "large", "parameters": large}}
    prompt = make_prompt(messages=[{"role": "user", "content": "Hi"}], tools=[tool])
    content = _content(prompt)
    assert content[_TOOLS] == [{"type": "function", "name": "large"}]
    assert content[_CUT] == [_TOOLS]


def test_media_are_named_and_not_sent() -> None:
    data = "data:image/png;base64," + "QUJD" * 500
    signed = "https://user:pass@files.example/a/b.png?X-Signature=verysecret#part"
    content = _content(
        _user(
            [
                {"type": "image_url", "image_url": {"url": data}},
                {"type": "image_url", "image_url": {"url": signed}},
            ]
        )
    )
    blob, uri = content[_INPUT][0]["parts"]
    assert blob == {
        "type": "blob",
        "modality": "image",
        "content": "",
        "omitted_bytes": len(data),
    }
    assert uri == {"type": "uri", "modality": "image", "uri": "https://files.example/a/b.png?…"}


def test_of_other_tools_only_type_and_name_are_sent() -> None:
    written = {"type": "mcp", "name": "files", "authorization": "Bearer verysecret"}
    prompt = Prompt(
        turns=(Turn(Role.USER, (Text("Hi", extra={"secret": "verysecret"}),)),),
        tools=(OtherTool(written, "tools[0]"),),
        server_tools=({"type": "web_search", "headers": {"x": "verysecret"}},),
    )
    content = _content(prompt)
    assert content[_TOOLS] == [{"type": "mcp", "name": "files"}, {"type": "web_search"}]
    assert "verysecret" not in json.dumps(content)


@each("kind", list(KeyKind))
@each("position", [0, 1500, *range(1900, 2100, 7)])
def test_keys_of_the_gateway_are_redacted_wherever_the_text_is_cut(
    kind: KeyKind, position: int
) -> None:
    """A key that is cut shows no more characters than a redacted key."""
    key = mint_key(kind).value
    text = "." * position + key + "." * 5000
    pieces = [Delta(0, text=text[at : at + 10]) for at in range(0, len(text), 10)]
    call = Delta(0, tool_calls=(ToolCallPiece(0, "a", "f", json.dumps({"key": key})),))
    attributes = content_attributes(_user(text), _answered(call, *pieces, limit=4096), 4096)
    assert key[:9] not in str(attributes)


_TEXTS = st.text(max_size=400)


@given(
    st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), _TEXTS), min_size=1),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["text", "reasoning"]), _TEXTS)),
    st.lists(st.tuples(_TEXTS, _TEXTS), max_size=5),
    st.integers(1024, 4096),
)
def test_content_is_json_within_its_bound(
    messages: list[tuple[str, str]],
    pieces: list[tuple[int, str, str]],
    calls: list[tuple[str, str]],
    limit: int,
) -> None:
    prompt = Prompt(
        turns=tuple(Turn(Role(role), (Text(text),), name=text[:30]) for role, text in messages),
        server_tools=tuple({"type": first, "name": second} for first, second in calls),
    )
    deltas = [Delta(choice, **{kind: text}) for choice, kind, text in pieces]  # type: ignore[arg-type]
    deltas += [
        Delta(0, tool_calls=(ToolCallPiece(number, name, name, arguments),))
        for number, (name, arguments) in enumerate(calls)
    ]
    attributes = content_attributes(prompt, _answered(*deltas, limit=limit), limit)
    sent = [value for value in attributes.values() if isinstance(value, str)]
    assert sum(len(value.encode()) for value in sent) <= limit
    assert all(isinstance(json.loads(value), list) for value in sent)


@given(st.integers(0, 5000), st.integers(1024, 4096))
def test_many_empty_parts_stay_within_the_bound(count: int, limit: int) -> None:
    turns = tuple(Turn(Role.USER, (Text(""),) * 3) for _ in range(count))
    attributes = content_attributes(Prompt(turns=turns), AnswerContent(limit), limit)
    sent = attributes[_INPUT]
    assert isinstance(sent, str)
    assert len(sent) <= limit
    assert (_CUT in attributes) == (len(json.loads(sent)) < count)
