"""Tests the signatures of thoughts on the Gemini wire: in streams, without ids, missing, and of edited text.
`tests/providers/test_round_trips.py` tests that a whole conversation comes back unchanged."""

import json
from typing import Any

import msgspec

from tests.faces.responses.test_round_trip import add_all
from tests.providers.conversations import conversation, turn_of
from tests.providers.gemini.calls import GEMINI, OLDER, gemini_call, sent
from tests.support.tables import each
from tests.support.upstream_gemini import answer_records, call_part, text_part, thought_part, whole
from tollkeeper.calls.reasoning_seal import KeptReasoning
from tollkeeper.core.catalog import Model
from tollkeeper.core.inference import Delta
from tollkeeper.core.prompt import Reasoning, Role, Text, Turn
from tollkeeper.faces.responses.input import Conversation
from tollkeeper.faces.responses.output import Listener, Output
from tollkeeper.providers.claude_thinking import sealed_block
from tollkeeper.providers.gemini.answer import GeminiAnswer
from tollkeeper.providers.gemini.thinking import UNSIGNED
from tollkeeper.providers.gemini.wire import Endpoint

_ANSWERS: list[list[dict[str, Any]]] = [
    [
        text_part("I look."),
        call_part("c1", "weather", "c2lnMQ==", place="Paris"),
        call_part("c2", "weather", place="Rome"),
    ],
    [thought_part("It is wet.", "c2lnMg=="), text_part("Wet and dry.", "c2lnMw==")],
    [text_part("Yes."), text_part("", "c2lnNA==")],
]


def _read_whole(parts: list[dict[str, Any]]) -> Turn:
    answer = GeminiAnswer(gemini_call())
    return turn_of(answer.read_whole(json.dumps(whole(*parts)).encode()))


def _read_stream(parts: list[dict[str, Any]]) -> Turn:
    answer = GeminiAnswer(gemini_call())
    payloads = [record.removeprefix(b"data: ").strip() for record in answer_records(*parts)]
    return turn_of(answer.read(payloads))


def _sent(
    turns: tuple[Turn, ...], *, model: Model = GEMINI, endpoint: Endpoint = Endpoint.GEMINI
) -> Any:
    call = gemini_call(model=model)
    prompt = msgspec.structs.replace(call.prompt, turns=turns, texts=None, written=None)
    return sent(msgspec.structs.replace(call, prompt=prompt), endpoint=endpoint)


def test_pieces_of_a_stream_come_back_with_their_signatures() -> None:
    """A stream splits a text in two pieces. Only the second piece has the text's signature."""
    turns = conversation([_read_stream(parts) for parts in _ANSWERS])
    models = [
        content["parts"] for content in _sent(turns)["contents"] if content["role"] == "model"
    ]
    assert models[0] == _ANSWERS[0]
    assert models[1] == [
        _ANSWERS[1][0],
        text_part("Wet an"),
        text_part("d dry.", "c2lnMw=="),
    ]
    assert models[2] == _ANSWERS[2]


def test_signatures_of_two_texts_come_back_through_responses() -> None:
    """A Responses client gets a message for each signed text, with reasoning in between. The signatures
    count from the beginning of the whole answer."""
    parts = [text_part("One.", "c2lnMQ=="), text_part("Then two.", "c2lnMg==")]
    answer = GeminiAnswer(gemini_call())
    events = answer.read_whole(json.dumps(whole(*parts)).encode())
    sealed: list[KeptReasoning] = []

    def seal(text: str, by_backend: tuple[str, ...]) -> str:
        sealed.append(KeptReasoning(text, GEMINI.id, by_backend))
        return str(len(sealed) - 1)

    output = Output("r", Listener(), owner=None, seal=seal)
    add_all(output, [event for event in events if isinstance(event, Delta)])
    conversation = Conversation(GEMINI, lambda number: sealed[int(number)])
    for item in output.items():
        conversation.add(msgspec.Raw(msgspec.json.encode(item)), "input[0]")
    conversation.add(msgspec.Raw(b'{"role":"user","content":"Go on."}'), "input[1]")
    assert _sent(conversation.turns())["contents"][0]["parts"] == parts


def test_vertex_has_no_ids() -> None:
    turns = conversation([_read_whole(parts) for parts in _ANSWERS])
    body = json.dumps(_sent(turns, endpoint=Endpoint.VERTEX))
    assert '"id"' not in body
    assert "c2lnMQ==" in body


def test_vertex_gets_results_in_the_order_of_the_calls() -> None:
    """Vertex matches results with calls by their order, but a client may send them in any order."""
    turns = list(conversation([_read_whole(parts) for parts in _ANSWERS]))
    in_order = _sent(tuple(turns), endpoint=Endpoint.VERTEX)
    turns[3:5] = turns[4], turns[3]
    assert _sent(tuple(turns), endpoint=Endpoint.VERTEX) == in_order
    # Some clients use the same ids again in later answers.
    again = [*turns[:3], turns[4], turns[3], turns[2], *turns[3:]]
    contents = _sent(tuple(again), endpoint=Endpoint.VERTEX)["contents"]
    assert contents[4] == contents[2] == in_order["contents"][2]


@each(("model", "signature"), [(GEMINI, UNSIGNED), (OLDER, None)])
def test_a_caller_that_has_not_kept_the_signatures(model: Model, signature: str | None) -> None:
    """The client uses chat, or sends back an answer of another provider."""
    foreign = sealed_block({"type": "thinking", "thinking": "x", "signature": "y"})
    answers = []
    for turn in map(_read_whole, _ANSWERS):
        rest = [part for part in turn.parts if not isinstance(part, Reasoning)]
        answers.append(Turn(turn.role, (Reasoning("Hm.", (foreign, "{}", "gAAA")), *rest)))
    body = _sent(conversation(answers), model=model)
    parts = body["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [None, signature, None]
    assert body["contents"][3]["parts"] == [text_part("Wet and dry.")]


def test_a_signature_of_an_edited_text_is_left_out() -> None:
    turn = _read_whole(_ANSWERS[1])
    edited = Turn(Role.ASSISTANT, (turn.parts[0], Text("Wet.")))
    body = _sent(conversation([_read_whole(_ANSWERS[0]), edited, _read_whole(_ANSWERS[2])]))
    assert body["contents"][3]["parts"] == [_ANSWERS[1][0], text_part("Wet.")]


def test_many_signatures_are_sent_in_linear_time() -> None:
    """Tests that the time is linear. If it were quadratic, this test would not end in time."""
    sealed = _read_whole([text_part("a", "c2ln")]).parts[0]
    texts = (Text("a"),) * 50_000
    turn = Turn(Role.ASSISTANT, (*(sealed,) * 50_000, *texts))
    body = _sent((Turn(Role.USER, (Text("Well?"),)), turn, Turn(Role.USER, (Text("Sure?"),))))
    assert body["contents"][1]["parts"][:2] == [text_part("a", "c2ln"), text_part("a")]
