"""Tests that Schemathesis with a fixed seed finds no fault in a running gateway.

Schemathesis runs as a separate program. The gateway runs in a thread of this process with its own
event loop.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.gateway import Gateway, Tenant, running_gateway
from tests.support.proof import Proof

from tollkeeper.faces.openapi import document
from tollkeeper.setup.settings import Settings

_SEED = "20261115"
_HERE = str(Path(__file__).parent)


@dataclass(frozen=True)
class _Subject:
    """A gateway with a tenant, a policy, and a project that Schemathesis may archive."""

    gateway: Gateway
    tenant: Tenant
    policy_id: str
    doomed_project_id: str


async def _subject(gateway: Gateway) -> _Subject:
    tenant = await gateway.make_tenant()
    policy = await gateway.make_policy(tenant)
    doomed = await gateway.services.projects.project_create(tenant.organization_id, "doomed")
    return _Subject(gateway, tenant, policy["id"], str(doomed.id))


@contextmanager
def _gateway_in_thread(settings: Settings, conninfo: str) -> Iterator[_Subject]:
    started: list[_Subject] = []
    ready, done = threading.Event(), threading.Event()

    async def run() -> None:
        async with running_gateway(settings, conninfo) as gateway:
            started.append(await _subject(gateway))
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield started[0]
    finally:
        done.set()
        thread.join(30)


def _config(subject: _Subject, examples: int) -> str:
    """Returns Schemathesis settings with a credential for each security scheme, and ids that exist."""
    tenant = subject.tenant
    return f"""
seed = {_SEED}
[generation]
max-examples = {examples}
[auth.openapi.adminKey]
bearer = "{tenant.admin_key}"
[auth.openapi.customerKey]
bearer = "{tenant.project_key}"
[auth.openapi.customerHeaderKey]
api_key = "{tenant.project_key}"
[parameters]
"path.policy_id" = "{subject.policy_id}"
"path.project_id" = "{tenant.project_id}"
[[operations]]
include-operation-id = "project_archive"
parameters = {{ "path.project_id" = "{subject.doomed_project_id}" }}
# A page cursor is opaque: what this service did not sign is refused, whatever its length.
[[operations]]
include-operation-id = "cost_report"
checks.positive_data_acceptance.enabled = false
# Which fields go together, and what a model can do, no schema says.
[[operations]]
include-tag = "Inference"
checks.positive_data_acceptance.enabled = false
"""


@pytest.mark.parametrize(
    "operations",
    [
        "/v1/models/",
        *(
            pytest.param(path, marks=pytest.mark.slow)
            for path in ("/v1/organization/", "/v1/chat/", "/v1/responses", "/v1/messages/")
        ),
    ],
)
def test_schemathesis_finds_nothing(
    settings: Settings, conninfo: str, tmp_path: Path, proof: Proof, operations: str
) -> None:
    schema = tmp_path / "openapi.json"
    schema.write_text(json.dumps(document()))
    with _gateway_in_thread(settings, conninfo) as subject:
        (tmp_path / "schemathesis.toml").write_text(
            _config(subject, proof.size(quick=25, long=25, smoke=2))
        )
        found = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                "run",
                str(schema),
                f"--url={subject.gateway.base_url}",
                f"--include-path-regex={operations}",
                "--phases=examples,coverage,fuzzing",
                "--no-color",
            ],
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": _HERE},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert found.returncode == 0, found.stdout[-20000:] + found.stderr[-5000:]
