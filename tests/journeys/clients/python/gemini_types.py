"""Checks requests and answers of the Gemini protocol with the types of Google's SDK; prints complaints.

Standard input is `{"requests": {name: body}, "answers": {name: record}}`.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from google.genai import types

_FIELDS = {
    "systemInstruction": types.Content,
    "toolConfig": types.ToolConfig,
    "generationConfig": types.GenerationConfig,
}
_LISTS = {"contents": types.Content, "tools": types.Tool}


def read_request(body: dict[str, Any]) -> None:
    for name, value in body.items():
        if name in _LISTS:
            for item in value:
                _LISTS[name].model_validate(item)
        else:
            _FIELDS[name].model_validate(value)


def read_answer(record: dict[str, Any]) -> None:
    answer = types.GenerateContentResponse.model_validate(record)
    for candidate in answer.candidates or ():
        # The SDK's enums accept unknown words with a warning.
        reason = candidate.finish_reason
        if reason is not None and reason not in list(types.FinishReason):
            raise ValueError(f"{reason} is no reason of an end")


def complaints(read: Callable[[Any], None], given: dict[str, Any]) -> Iterator[str]:
    for name, content in given.items():
        try:
            read(content)
        except (ValueError, KeyError, TypeError) as error:
            yield f"{name}: {error!r}"


given = json.load(sys.stdin)
found = [
    *complaints(read_request, given["requests"]),
    *complaints(read_answer, given["answers"]),
]
sys.stdout.write(json.dumps(found))
