"""Runs a gateway with a scripted model and a scripted judge, and publishes policies with one call.

The judge understands questions of the form "Does it say WORD?": its score is high if the quoted text
contains the word. A test may replace its opinions.
"""

import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2

from tests.support.scripted_gateway import ScriptedGateway, eventually, scripted_gateway
from tests.support.upstream import USAGE, Peer, Received, Upstream, Verb, answer, chat, completion
from tollkeeper.core.views import ActivityEntry
from tollkeeper.policies import store as storage
from tollkeeper.policies.policy import (
    Direction,
    Mode,
    Policy,
    PolicyState,
    PolicyVersion,
    Rule,
    Scope,
)
from tollkeeper.providers.health import EjectionRule, ReplicaHealth
from tollkeeper.providers.routing import RoutedBackend

JUDGE_MODEL = "the-judge"
LIKELY = 9000
UNLIKELY = 1000
_ASKED = re.compile(
    r"(The text is an answer to the following request\. The request is context: the question is not "
    r"about it\.\n<<(?P<context_fence>[0-9a-f]{16})>>\n(?P<context>.*)\n<<(?P=context_fence)>>\n"
    r"The text:\n)?"
    r"<<(?P<fence>[0-9a-f]{16})>>\n(?P<text>.*)\n<<(?P=fence)>>\n"
    r"Question: (?P<question>.*)\nAnswer \(Yes or No\):",
    re.DOTALL,
)


@dataclass(frozen=True)
class Asked:
    """Contains one question that the judge received."""

    received: Received
    text: str
    question: str
    fence: str
    # The request that the text answers, and the fence around this request.
    context: str | None = None
    context_fence: str | None = None

    @property
    def before_question(self) -> bytes:
        """Returns the part of the body that is the same for all questions about a text."""
        return self.received.body.split(b"Question: ")[-2]


Opinion = int | Verb


def opinion_by_words(asked: Asked) -> Opinion:
    found = re.fullmatch(r"Does it say (.*)\?", asked.question, re.DOTALL)
    return LIKELY if found is not None and found.group(1) in asked.text else UNLIKELY


class ScriptedJudge(Upstream):
    """Answers with `opinion`: a score in basis points, or a verb that plays a faulty judge."""

    def __init__(self) -> None:
        super().__init__(self._judge)
        self.opinion: Callable[[Asked], Opinion] = opinion_by_words
        self.asked: list[Asked] = []
        self.at_once_max = 0

    def reset(self) -> None:
        self.opinion = opinion_by_words
        self.asked.clear()
        self.at_once_max = 0

    @property
    def questions(self) -> list[str]:
        return [asked.question for asked in self.asked]

    @property
    def texts(self) -> list[str]:
        return [asked.text for asked in self.asked]

    async def _judge(self, peer: Peer) -> None:
        asked = _read(peer.request)
        self.asked.append(asked)
        self.at_once_max = max(self.at_once_max, self.under_way)
        opinion = self.opinion(asked)
        await (judge_answer(opinion) if isinstance(opinion, int) else opinion)(peer)


def _read(received: Received) -> Asked:
    body = received.json
    assert body["max_tokens"] == 1
    assert body["logprobs"] is True
    found = _ASKED.fullmatch(body["messages"][-1]["content"])
    assert found is not None, body["messages"][-1]["content"]
    return Asked(received, **found.groupdict())


def judge_answer(basis_points: int, usage: Any = USAGE) -> Verb:
    """Returns an answer with exactly this probability of yes."""
    yes, no = (_logprob(share) for share in (basis_points, 10_000 - basis_points))
    return judge_answer_of([("Yes", yes), ("No", no)], usage)


def judge_answer_of(alternatives: Sequence[tuple[str, float]], usage: Any = USAGE) -> Verb:
    top = [{"token": token, "logprob": logprob} for token, logprob in alternatives]
    position = {**top[0], "top_logprobs": top}
    body = completion(top[0]["token"], usage=usage)  # type: ignore[arg-type]
    body["choices"][0]["logprobs"] = {"content": [position]}
    return answer(body)


def _logprob(basis_points: int) -> float:
    return math.log(basis_points / 10_000) if basis_points else -9999.0


@dataclass(frozen=True)
class JudgedGateway:
    """Contains the gateway, model and judge for one tenant."""

    scripted: ScriptedGateway
    judge: ScriptedJudge

    async def with_tenant(self, *, credit: int = 10**13) -> "JudgedGateway":
        return replace(self, scripted=await self.scripted.with_tenant(credit=credit))

    async def for_next_test(self) -> "JudgedGateway":
        """Resets the model, the judge and the judge's replica health, and returns a new tenant's view."""
        self.model.play(chat())
        self.judge.reset()
        judge = self.scripted.gateway.services.backends["judge"]
        assert isinstance(judge, RoutedBackend)
        for replica in judge._replicas:
            replica.health = ReplicaHealth(EjectionRule(3, 1.0, 10.0))
        return await self.with_tenant()

    @property
    def model(self) -> Upstream:
        return self.scripted.upstream

    async def draft(self, word: str = "bomb", **fields: Any) -> Policy:
        created = await self.scripted.gateway.make_policy(
            self.scripted.tenant,
            **{"name": f"No {word}"[:80], "rule": f"Does it say {word}?", **fields},
        )
        return await self.scripted.gateway.services.policies.policy_show(
            self.scripted.tenant.organization_id, created["id"]
        )

    async def publish(self, word: str = "bomb", **fields: Any) -> Policy:
        return await self.change("publish", await self.draft(word, **fields))

    async def enforce(self, word: str = "bomb", **fields: Any) -> Policy:
        return await self.publish(word, mode="enforcing", **fields)

    async def publish_many(
        self, count: int, *, mode: str, direction: str = "both", scope: str = "organization"
    ) -> list[str]:
        """Writes this many published policies in one transaction, with the rows that the services would
        write. Returns their ids."""
        organization = self.scripted.tenant.organization_id
        policies = [
            Policy(
                id=f"pol_{uuid4().hex}",
                organization_id=organization,
                name=f"Policy {number}",
                description="",
                state=PolicyState(mode),
                revision=2,
                created_at=1_800_000_000,
                updated_at=1_800_000_000,
                draft=(
                    rule := Rule(f"Is it {number}?", Direction(direction), Mode(mode), Scope(scope))
                ),
                base_version=1,
                published=PolicyVersion(
                    f"polv_{uuid4().hex}", 1, f"Policy {number}", rule, 1_800_000_000
                ),
            )
            for number in range(count)
        ]
        async with self.scripted.gateway.services.database.transaction() as connection:
            for policy in policies:
                await storage.insert(connection, replace(policy, state=PolicyState.DRAFT))
                await storage.insert_version(connection, policy)
            await connection.execute(
                "UPDATE policies SET current_version = 1, state = mode WHERE organization_id = %s",
                (organization,),
            )
            await storage.increment_epoch(connection, organization)
        return [policy.id for policy in policies]

    async def change(self, verb: str, policy: Policy) -> Policy:
        """Publishes, pauses or resumes the policy: `verb` is `publish`, `pause` or `resume`."""
        service = getattr(self.scripted.gateway.services.policies, f"policy_{verb}")
        changed = await service(policy.organization_id, policy.id, policy.revision)
        assert isinstance(changed, Policy)
        return changed

    def say(self, text: str, *, choices: int = 1) -> None:
        """Sets the model's answer from now on."""
        self.model.play(answer(completion(text, choices=choices)))

    async def chat(self, text: str = "Hello", **fields: Any) -> httpx2.Response:
        return await self.scripted.chat(
            **{"messages": [{"role": "user", "content": text}], **fields}
        )

    async def entry(self, found: httpx2.Response | str) -> ActivityEntry:
        """Waits until a call and its verdicts are recorded, and returns its activity."""
        request_id = found if isinstance(found, str) else found.headers["x-request-id"]
        services = self.scripted.gateway.services
        await eventually(lambda: services.inference.running == 0)
        await eventually(lambda: services.checks.judging == 0, within_s=200)
        await services.recorder.drain()
        await services.activity.drain()
        return await services.activity.activity_show(UUID(request_id))


@asynccontextmanager
async def judged_gateway(
    data_dir: Path,
    conninfo: str,
    *,
    judge: dict[str, Any] | None = None,
    backend: dict[str, Any] | None = None,
    judge_backend: dict[str, Any] | None = None,
    window: dict[str, int] | None = None,
    **changes: Any,
) -> AsyncIterator[JudgedGateway]:
    """Runs a separate gateway, with changed settings of its judge or of the two backends."""
    async with Upstream(chat()) as model, ScriptedJudge() as judge_server:
        settings = {"deadline_s": 30, "concurrency": 8, **(judge or {})}
        window = {"window_characters": 1000, "overlap_characters": 100, **(window or {})}
        backends = [
            {"name": "scripted", "kind": "openai", "urls": [model.url], **(backend or {})},
            {
                "name": "judge",
                "kind": "openai",
                "urls": [judge_server.url],
                "retries": 0,
                **(judge_backend or {}),
            },
        ]
        async with scripted_gateway(
            data_dir,
            conninfo,
            model,
            backends=backends,
            judge={"backend": "judge", "model": JUDGE_MODEL, **settings},
            changed_constants={
                "setup.backends.JudgeConfig": window,
                **changes.pop("changed_constants", {}),
            },
            **changes,
        ) as scripted:
            yield JudgedGateway(scripted, judge_server)


def assert_denied(found: httpx2.Response, policy: Policy, direction: str) -> None:
    """Checks the status, error and headers of a denial."""
    assert found.status_code == 403, found.text
    error = found.json()["error"]
    assert (error["type"], error["code"]) == ("policy_error", "policy_denied")
    assert error["message"] == f"The policy {policy.name!r} ({policy.id}) denied this {direction}."
    assert found.headers["x-should-retry"] == "false"
    assert found.headers["content-type"] == "application/json"
