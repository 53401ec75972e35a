"""From the messages of a chat request to the input items of a Responses request.

What an assistant said at once is one message in chat and several items here: its reasoning, its
text, its calls. Content that has no item is refused, because leaving it out would be another
request.
"""

from typing import Any

import msgspec

from tollkeeper.backends.answer_json import ABSENT, given
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported

# Where an assistant's message keeps what only its backend can read.
SEALED_REASONING = "sealed_reasoning"
_AUTO = "auto"


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    function: _Function | None = None


class _File(msgspec.Struct):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _Image(msgspec.Struct):
    url: str
    detail: str | None = None


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    detail: str | None = None
    image_url: msgspec.Raw = ABSENT
    file: _File | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    sealed_reasoning: list[str] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


_messages = msgspec.json.Decoder(list[msgspec.Raw])
_message = msgspec.json.Decoder(_Message)
_image = msgspec.json.Decoder(str | _Image)
_encode = msgspec.json.Encoder().encode


class Input:
    """The input of a request as it comes together."""

    def __init__(self) -> None:
        # What the model is told before anything is said.
        self.instructions: str | None = None
        self.items: list[dict[str, Any]] = []
        self._thoughts = 0
        # Calls of the old kind have no id of their own: an output belongs to the last of its name.
        self._legacy_calls: dict[str, str] = {}

    def add(self, messages: Any) -> "Input":
        written = messages if isinstance(messages, msgspec.Raw) else _encode(messages)
        for at, raw in enumerate(_messages.decode(written)):
            place = f"messages[{at}]"
            try:
                message = _message.decode(raw)
            except (msgspec.DecodeError, RecursionError) as error:
                raise _without_item(place) from error
            self._add_message(message, place)
        if not self.items and self.instructions is not None:
            # Instructions alone are no input.
            self._add_item("message", role="system", content=self.instructions)
            self.instructions = None
        return self

    def _add_message(self, message: _Message, place: str) -> None:
        match message.role:
            case "tool":
                if not message.tool_call_id:
                    raise InvalidRequest(
                        "The output of a call names the call.", param=f"{place}.tool_call_id"
                    )
                self._add_output(message.tool_call_id, message, place)
            case "function":
                call_id = self._legacy_calls.get(message.name or "")
                if call_id is None:
                    raise InvalidRequest(
                        "No function_call before this output has its name.", param=f"{place}.name"
                    )
                self._add_output(call_id, message, place)
            case "assistant":
                _refuse_name(message, place)
                self._add_answer(message, place)
            case _:
                _refuse_name(message, place)
                self._say(message, place)

    def _say(self, message: _Message, place: str) -> None:
        content = message.content or ""
        if isinstance(content, str):
            if message.role == "system" and not self.items and self.instructions is None:
                self.instructions = content
                return
            self._add_item("message", role=message.role, content=content)
            return
        self._add_item("message", role=message.role, content=_parts(content, f"{place}.content"))

    def _add_answer(self, message: _Message, place: str) -> None:
        self._add_reasoning(message)
        said = _said(message.content)
        if said:
            self._add_item("message", role="assistant", content=said)
        for at, call in enumerate(message.tool_calls or ()):
            function = call.function
            if function is None or not call.id or call.type not in (None, "function"):
                raise _without_item(f"{place}.tool_calls[{at}]")
            self._call(call.id, function)
        if message.function_call is not None:
            call_id = f"call_{len(self.items)}"
            self._legacy_calls[message.function_call.name] = call_id
            self._call(call_id, message.function_call)

    def _add_reasoning(self, message: _Message) -> None:
        """In the backend's own words where it has given them, else in ours."""
        for sealed in message.sealed_reasoning or ():
            self._think(encrypted_content=sealed)
        thought = message.reasoning or message.reasoning_content
        if thought and not message.sealed_reasoning:
            self._think(content=[{"type": "reasoning_text", "text": thought}])

    def _think(self, **fields: Any) -> None:
        self._add_item("reasoning", id=f"rs_{self._thoughts}", summary=[], **fields)
        self._thoughts += 1

    def _call(self, call_id: str, function: _Function) -> None:
        self._add_item(
            "function_call", call_id=call_id, name=function.name, arguments=function.arguments
        )

    def _add_output(self, call_id: str, message: _Message, place: str) -> None:
        content = message.content or ""
        output: str | list[dict[str, Any]]
        if isinstance(content, str):
            output = content
        else:
            output = _parts(content, f"{place}.content")
            if all(part["type"] == "input_text" for part in output):
                # Every server reads a text here, and few a list.
                output = _said(content)
        self._add_item("function_call_output", call_id=call_id, output=output)

    def _add_item(self, kind: str, **fields: Any) -> None:
        self.items.append({"type": kind, **fields})


def _refuse_name(message: _Message, place: str) -> None:
    if message.name is not None:
        raise OptionUnsupported(
            "The backend's protocol has no names of speakers.", param=f"{place}.name"
        )


def _said(content: str | list[_Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or part.refusal or "" for part in content)


def _parts(content: list[_Part], place: str) -> list[dict[str, Any]]:
    return [_part(part, f"{place}[{at}]") for at, part in enumerate(content)]


def _part(part: _Part, place: str) -> dict[str, Any]:
    found = given(part.image_url)
    if found is not None:
        try:
            image = _image.decode(found)
        except msgspec.DecodeError as error:
            raise _without_item(f"{place}.image_url") from error
        source = _Image(image) if isinstance(image, str) else image
        detail = source.detail or part.detail or _AUTO
        return {"type": "input_image", "image_url": source.url, "detail": detail}
    if part.file is not None:
        given_of_file = msgspec.structs.asdict(part.file).items()
        return {"type": "input_file", **{name: value for name, value in given_of_file if value}}
    if part.text is None and part.refusal is None:
        raise _without_item(place)
    return {"type": "input_text", "text": part.text or part.refusal or ""}


def _without_item(place: str) -> OptionUnsupported:
    return OptionUnsupported("The backend's protocol has no item for this.", param=place)
