"""Tests token counting over HTTP: headers, the Anthropic SDK, the rate limit, and that nothing is charged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.gateway import Tenant
from tests.support.messages_answers import answered
from tests.support.scripted_gateway import MODEL, ScriptedGateway, scripted_gateway
from tests.support.sdks import anthropic
from tests.support.tables import each
from tests.support.token_counts import BARE, USER, assert_wrapped, count, counted, counts
from tests.support.upstream import Received, Upstream, refuse
from tests.support.upstream_messages import message
from tollkeeper.core.access import Permission


async def test_exact_count(scripted: ScriptedGateway) -> None:
    answered = await count(scripted)
    assert answered.json() == {"input_tokens": 42}
    assert answered.headers["x-token-count-estimated"] == "false"
    assert answered.headers["request-id"] == answered.headers["x-request-id"]
    assert scripted.upstream.requests[-1].path == "/tokenize"


async def test_estimate_where_there_is_no_tokenizer(estimating: ScriptedGateway) -> None:
    answered = await count(estimating)
    assert answered.status_code == 200
    assert answered.json()["input_tokens"] >= 1
    assert answered.headers["x-token-count-estimated"] == "true"


async def test_estimate_where_the_tokenizer_fails(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(refuse(500))
    answered = await count(scripted)
    assert answered.status_code == 200
    assert answered.headers["x-token-count-estimated"] == "true"
    scripted.upstream.play(counts(42))
    await counted(scripted)


async def test_estimate_grows_with_everything(estimating: ScriptedGateway) -> None:
    async def tokens(**fields: object) -> int:
        found: int = (await count(estimating, **fields)).json()["input_tokens"]
        return found

    plain = await tokens()
    tool = {"name": "look", "input_schema": {"type": "object"}}
    web = {"type": "web_search_2025_03_05", "name": "web_search"}
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    for fields in (
        {"system": "Be brief."},
        {"messages": [USER, USER]},
        {"tools": [tool]},
        {"tools": [web]},
        {"messages": [USER, {"role": "assistant", "content": [use]}]},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    ):
        assert await tokens(**fields) > plain, fields


async def test_nothing_is_charged_or_recorded(scripted: ScriptedGateway) -> None:
    """Counts tokens for an organization without credit."""
    await counted(scripted)
    books = await scripted.balance()
    assert (books["held"], books["settled"], books["resolutions"]) == (0, 0, 0)
    assert await scripted.entries() == []


async def test_rate_limit(scripted: ScriptedGateway) -> None:
    await scripted.sql(
        "UPDATE project_accounts SET requests_per_minute = 3 WHERE project_id = %s",
        scripted.tenant.project_id,
    )
    answers = [await count(scripted) for _ in range(5)]
    assert [answered.status_code for answered in answers] == [200, 200, 200, 429, 429]
    assert_wrapped(answers[-1], 429, "rate_limit_exceeded")
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
    # Calls and token counts share one rate limit.
    await scripted.grant(10**13)
    chat = await scripted.chat()
    assert chat.status_code == 429


async def test_rate_limit_at_once(scripted: ScriptedGateway) -> None:
    await scripted.sql(
        "UPDATE project_accounts SET requests_per_minute = 5 WHERE project_id = %s",
        scripted.tenant.project_id,
    )
    answers = await asyncio.gather(*(count(scripted) for _ in range(20)))
    assert sorted(answered.status_code for answered in answers) == [200] * 5 + [429] * 15


@each("version", ["2023-06-01", "2024-02-29", "9999-12-31"])
async def test_versions(scripted: ScriptedGateway, version: str) -> None:
    await counted(scripted, headers={**scripted.tenant.as_customer, "anthropic-version": version})


@each(
    "versions",
    [
        *([form] for form in ("", "1", "latest", "2023-6-1", "2023-06-01x", "20230601")),
        # These are not days of the calendar.
        *([day] for day in ("0000-00-00", "2030-99-99", "2023-02-29", "2023-06-31")),
        ["2023-06-01", "2023-01-01"],
        ["2023-06-01", "2023-06-01"],
        ["2023-06-01", ""],
    ],
    ids=str,
)
async def test_version_that_is_none(scripted: ScriptedGateway, versions: list[str]) -> None:
    headers = [*scripted.tenant.as_customer.items()]
    headers += [("anthropic-version", version) for version in versions]
    answered = await count(scripted, headers=headers)
    assert_wrapped(answered, 400, "invalid_request", "anthropic-version")


# The beta flags that Claude Code sends for its command `/context`.
CLAUDE_CODE = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,"
    "context-management-2025-06-27,token-counting-2024-11-01"
)


@each(
    "beta",
    [
        *("", "token-counting-2024-11-01", "token-counting-2024-11-01, token-counting-2024-11-01"),
        CLAUDE_CODE,
    ],
)
async def test_known_beta_flags(scripted: ScriptedGateway, beta: str) -> None:
    await counted(scripted, headers={**scripted.tenant.as_customer, "anthropic-beta": beta})


@each("beta", ["time-travel-2099-01-01", "token-counting-2024-11-01,time-travel", "x" * 513])
async def test_unknown_beta_flags(scripted: ScriptedGateway, beta: str) -> None:
    answered = await count(
        scripted, headers={**scripted.tenant.as_customer, "anthropic-beta": beta}
    )
    assert_wrapped(answered, 400, "invalid_request", "anthropic-beta")


@each(
    ("protocol", "sends"),
    [
        ("messages", lambda request: request.headers.get("anthropic-beta")),
        ("vertex_messages", lambda request: ",".join(request.json.get("anthropic_beta", []))),
    ],
)
async def test_a_messages_backend_is_sent_the_flags_of_its_model(
    data_dir: Path, conninfo: str, protocol: str, sends: Callable[[Received], str | None]
) -> None:
    """Claude Code's other flags are accepted, because they do not change a count, but are not sent."""
    async with (
        Upstream(message(input_tokens=42)) as upstream,
        scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            backend={"protocol": protocol},
            extensions={"messages": True},
            model={"beta_flags": ["files-api-2025-04-14", "interleaved-thinking-2025-05-14"]},
        ) as scripted,
    ):
        beta = f"{CLAUDE_CODE}, files-api-2025-04-14"
        headers = {**scripted.tenant.as_customer, "anthropic-beta": beta}
        await counted(scripted, headers=headers)
        expected = "interleaved-thinking-2025-05-14,files-api-2025-04-14"
        assert sends(upstream.requests[-1]) == expected
        for is_streamed in (False, True):
            await answered(scripted, headers=headers, stream=is_streamed)
            assert sends(upstream.requests[-1]) == expected
        await answered(scripted)
        assert not sends(upstream.requests[-1])
        await counted(scripted)
        assert not sends(upstream.requests[-1])
        headers["anthropic-beta"] = "files-api-2099-01-01"
        refused = await count(scripted, headers=headers)
        assert_wrapped(refused, 400, "invalid_request", "anthropic-beta")
        assert "files-api-2099-01-01" in refused.json()["error"]["message"]


@each("name", ["claude-opus-4-6", "claude-sonnet-4-5"])
async def test_a_messages_backend_counts_with_thinking(
    data_dir: Path, conninfo: str, name: str
) -> None:
    """Models before Claude 4.6 get a token budget, which has to fit the output limit."""
    async with (
        Upstream(message(input_tokens=42)) as upstream,
        scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            backend={"protocol": "messages"},
            extensions={"messages": True},
            model={"upstream_model": name, "supported_features": ["reasoning"]},
        ) as scripted,
    ):
        sent = await counted(scripted, thinking={"type": "enabled", "budget_tokens": 2048})
        assert "thinking" in sent


async def test_a_mark_on_messages_without_content(scripted: ScriptedGateway) -> None:
    messages = [{"role": "assistant", "content": []}]
    await counted(scripted, messages=messages, cache_control={"type": "ephemeral"})


@each("length", [0, 513])
async def test_session_header_is_bounded(scripted: ScriptedGateway, length: int) -> None:
    headers = {**scripted.tenant.as_customer, "X-Service-Session-ID": "s" * length}
    assert_wrapped(
        await count(scripted, headers=headers), 400, "invalid_request", "X-Service-Session-ID"
    )


async def test_query_of_the_beta_resource(scripted: ScriptedGateway) -> None:
    await counted(scripted, path="/v1/messages/count_tokens?beta=true")
    answered = await count(scripted, path="/v1/messages/count_tokens?gamma=true")
    assert_wrapped(answered, 400, "invalid_request", "gamma")


@each("number", ["1e400", "9" * 5000])
async def test_number_that_is_too_large_in_a_web_tool(
    scripted: ScriptedGateway, number: str
) -> None:
    tool = f'{{"type":"web_search_20250305","name":"web_search","max_uses":{number}}}'
    body = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"a"}}],"tools":[{tool}]}}'
    headers = {**scripted.tenant.as_customer, "Content-Type": "application/json"}
    path = "/v1/messages/count_tokens"
    answered = await scripted.gateway.client.post(path, content=body, headers=headers)
    assert_wrapped(answered, 400, "invalid_request", "tools[0][...]")


async def test_errors_are_wrapped(scripted: ScriptedGateway) -> None:
    assert_wrapped(await count(scripted, model="nobody"), 404, "model_not_found", "model")
    assert_wrapped(await count(scripted, headers={}), 401, "invalid_api_key")
    assert_wrapped(
        await count(scripted, headers=scripted.tenant.as_admin), 403, "permission_denied"
    )
    client, path = scripted.gateway.client, "/v1/messages/count_tokens"
    assert_wrapped(await client.get(path), 405, "method_not_allowed")
    plain = {**scripted.tenant.as_customer, "Content-Type": "text/plain"}
    answered = await client.post(path, content=b"{}", headers=plain)
    assert_wrapped(answered, 415, "unsupported_media_type")


async def test_permission_and_revocation(scripted: ScriptedGateway) -> None:
    keys = scripted.gateway.services.project_keys
    _, reader = await keys.project_key_create_by_operator(
        scripted.tenant.project_id, "reader", (Permission.MODELS_READ,), None
    )
    headers = {"x-api-key": reader}
    assert_wrapped(await count(scripted, headers=headers), 403, "permission_denied")
    await counted(scripted)
    await scripted.sql(
        "UPDATE project_keys SET revoked_at = now() WHERE project_id = %s",
        scripted.tenant.project_id,
    )
    assert_wrapped(await count(scripted), 401, "invalid_api_key")


# Tests with the real SDK in its newest major version, and with the headers of an older version.


def _client(tenant: Tenant, base_url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key=tenant.project_key, base_url=base_url, max_retries=0)


async def test_anthropic_sdk(scripted: ScriptedGateway) -> None:
    async with _client(scripted.tenant, scripted.gateway.base_url) as client:
        found = await client.messages.count_tokens(
            model=MODEL,
            system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            messages=[
                {"role": "user", "content": "Look."},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                        {"type": "tool_use", "id": "t1", "name": "look", "input": {"far": True}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "a lake"},
                        {"type": "text", "text": "And?"},
                    ],
                },
            ],
            tools=[{"name": "look", "input_schema": {"type": "object"}}],
            tool_choice={"type": "any"},
            thinking={"type": "enabled", "budget_tokens": 2048},
        )
        assert found.input_tokens == 42
        assert found._request_id
        roles = [message["role"] for message in scripted.upstream.requests[-1].json["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "user"]
        beta = await client.beta.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}]
        )
        assert beta.input_tokens == 42


async def test_anthropic_sdk_errors(scripted: ScriptedGateway) -> None:
    async with _client(scripted.tenant, scripted.gateway.base_url) as client:
        with pytest.raises(anthropic.NotFoundError) as missing:
            await client.messages.count_tokens(
                model="nobody", messages=[{"role": "user", "content": "Hello"}]
            )
        assert missing.value.type == "not_found_error"
        assert missing.value.request_id
        with pytest.raises(anthropic.APIStatusError) as unsupported:
            await client.messages.count_tokens(
                model=BARE,
                messages=[{"role": "user", "content": "Hello"}],
                tools=[{"name": "look", "input_schema": {"type": "object"}}],
            )
        assert unsupported.value.status_code == 501


async def test_headers_of_an_older_sdk(scripted: ScriptedGateway) -> None:
    headers = {
        "X-Api-Key": scripted.tenant.project_key,
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "token-counting-2024-11-01",
        "content-type": "application/json",
        "x-stainless-lang": "python",
        "x-stainless-retry-count": "0",
    }
    await counted(scripted, headers=headers, path="/v1/messages/count_tokens?beta=true")
