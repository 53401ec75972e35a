"""Makes calls that a policy denies with the installed version of Anthropic's SDK: whole and streamed."""

import json
import os
import sys
from typing import Any

import anthropic


def main() -> None:
    client = anthropic.Anthropic(base_url=os.environ["ANTHROPIC_BASE_URL"], max_retries=0)
    told = {way: asked(client, streamed=way == "streamed") for way in ("whole", "streamed")}
    json.dump(told, sys.stdout)


def asked(client: anthropic.Anthropic, *, streamed: bool) -> dict[str, Any]:
    fields: Any = {
        "model": os.environ["MODEL"],
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    text = ""
    try:
        if streamed:
            with client.messages.stream(**fields) as answering:
                for piece in answering.text_stream:
                    text += piece
        else:
            text = client.messages.create(**fields).content[0].text
    except anthropic.APIStatusError as exc:
        body: Any = exc.body
        return {"text": text, "denied": body["error"]["code"] == "policy_denied"}
    return {"text": text, "denied": False}


main()
