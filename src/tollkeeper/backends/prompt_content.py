"""What wires have in common where they encode the content of a prompt."""

import msgspec

from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import FreeObject, ToolCall

_json_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def arguments_object(call: ToolCall) -> FreeObject:
    """The arguments as an object. The model wrote a JSON text; a call without any may be empty."""
    try:
        decoded: FreeObject = dict(_json_object.decode(call.arguments.strip() or "{}"))
    except msgspec.DecodeError:
        raise InvalidRequest(
            "The arguments of the call are not a JSON object.", param=call.place
        ) from None
    return decoded


def unsupported_content(place: str) -> OptionUnsupported:
    return OptionUnsupported("The backend's protocol cannot carry this content.", param=place)
