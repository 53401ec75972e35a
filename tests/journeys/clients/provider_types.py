"""Requests with every feature, for a check by a provider's own library, and the function that runs the
check and returns the library's complaints."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.journeys.clients.programs import PythonClient

# Time limit for each check, in seconds.
_PATIENCE_S = 240
FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "d",
        "strict": True,
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
FUNCTION_BY_NAME: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}


def conversation(
    system: str | list[dict[str, Any]],
    *media: dict[str, Any],
    later: tuple[dict[str, Any], ...] = (),
) -> list[dict[str, Any]]:
    """Returns a conversation with every kind of turn and part. `media` follows the image, and `later`
    follows the tool result. They are for parts and turns that only some providers accept."""
    png = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    pdf = {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}}
    wav = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}
    call = {"id": "c1", "function": {"name": "weather", "arguments": '{"place": "Paris"}'}}
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": [{"type": "text", "text": "See:"}, png, *media, wav, pdf]},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "wet"},
        *later,
        {"role": "user", "content": "And?"},
    ]


def answer_format(**more: Any) -> dict[str, Any]:
    """Returns a `response_format` with a schema."""
    schema = {"name": "n", "schema": {"type": "object", "properties": {}}, **more}
    return {"type": "json_schema", "json_schema": schema}


async def complaints(client: PythonClient, script: str, given: dict[str, Any]) -> list[str]:
    """Checks `given` with a script of the folder `python`, and returns the complaints of the library."""
    ran = await asyncio.to_thread(
        subprocess.run,
        [str(client.python), "-P", str(Path(__file__).parent / "python" / script)],
        input=json.dumps(given).encode(),
        capture_output=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    found: list[str] = json.loads(ran.stdout)
    return found
