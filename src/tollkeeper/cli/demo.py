"""`tollkeeper demo`: runs everything on one machine with a demo organization. `make serve` runs it."""

import asyncio
import dataclasses
import json
import os
from contextlib import ExitStack
from pathlib import Path

import typer
import uvloop
from rich.console import Console

from tollkeeper.bootstrap import located_database, running_services
from tollkeeper.cli.command import Invocation, command, command_app
from tollkeeper.cli.demo_console import DemoConsole, console_listener, running_console
from tollkeeper.cli.serve import listeners
from tollkeeper.embedded.engine import START_TIMEOUT_S
from tollkeeper.hosting.logs import configure_logs
from tollkeeper.hosting.supervisor import Supervisor, describe
from tollkeeper.services.demonstration import DEMO_CREDIT_USD, Demonstration, DemoTenant
from tollkeeper.settings import Settings
from tollkeeper.storage.migrations import migrate
from tollkeeper.storage.schema import check_database

app = command_app()
_stderr = Console(stderr=True, highlight=False)


@command(app, "demo")
def demo(invocation: Invocation) -> None:
    """Run everything on this machine, with a demo organization, and print how to use it."""
    settings = invocation.settings()
    with ExitStack() as stack:
        public, operator = listeners(settings, stack)
        console_socket = console_listener(settings)
        configure_logs()
        with _stderr.status("Starting PostgreSQL ..."):
            conninfo = stack.enter_context(located_database(settings))
            migrate(conninfo)
            check_database(conninfo)
        tenant = uvloop.run(_demo_tenant(settings, conninfo))
        console = stack.enter_context(running_console(settings, invocation.config, console_socket))
        addresses = describe(public, operator)
        assert invocation.worker_starter is not None
        supervisor = Supervisor(
            settings,
            conninfo,
            public=public,
            operator=operator,
            reload=invocation.settings,
            worker_starter=invocation.worker_starter,
        )
        running = Running(settings, tenant, console, addresses)
        uvloop.run(_supervise(supervisor, running, as_json=invocation.as_json))


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """What the demo runs, for its banner."""

    settings: Settings
    tenant: DemoTenant
    console: DemoConsole
    addresses: dict[str, str]


async def _supervise(supervisor: Supervisor, running: Running, *, as_json: bool) -> None:
    announcements: list[asyncio.Task[None]] = []

    def on_ready() -> None:
        announcements.append(asyncio.create_task(announce()))

    async def announce() -> None:
        with _stderr.status("Loading the model ..."):
            engine = await supervisor.wait_for_engine(START_TIMEOUT_S)
        if as_json:
            typer.echo(json.dumps(_document(running, engine)))
        else:
            typer.echo(_welcome(running, engine))

    await supervisor.run(on_ready=on_ready)
    for task in announcements:
        task.cancel()
    await asyncio.gather(*announcements, return_exceptions=True)


async def _demo_tenant(settings: Settings, conninfo: str) -> DemoTenant:
    """Makes the tenant once. Its keys are kept in the data folder, readable by the owner only."""
    path = settings.database.data_dir / "demo.json"
    if path.exists():
        return DemoTenant(**json.loads(path.read_text()))
    async with running_services(settings, conninfo) as services:
        tenant = await Demonstration(
            services.organizations,
            services.projects,
            services.admin_keys,
            services.project_keys,
            services.billing,
        ).demo_create()
    _write_private_file(path, json.dumps(dataclasses.asdict(tenant)))
    return tenant


def _write_private_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _document(running: Running, engine: str) -> dict[str, str]:
    return {
        **running.addresses,
        **dataclasses.asdict(running.tenant),
        "engine": engine,
        "console": running.console.address,
        "operator_token": running.console.token,
    }


def _welcome(running: Running, engine: str) -> str:
    models, tenant = running.settings.models, running.tenant
    model = models[0].id if models else "MODEL"
    base, console = running.addresses["public"], running.console
    return f"""
tollkeeper is running.

  console        {console.address or "not installed: pip install 'tollkeeper[console]'"}
  operator token {console.token or "the one of your settings"}

  API            {base}/v1
  operators      {running.addresses["operator"]}  (/healthz /readyz /metrics)
  engine         {engine}

  organization   {tenant.organization_id}  (credit {DEMO_CREDIT_USD} USD at the first start)
  project        {tenant.project_id}
  project key    {tenant.project_key}
  admin key      {tenant.admin_key}

Send a request:

  curl -N {base}/v1/chat/completions \\
    -H 'Authorization: Bearer {tenant.project_key}' \\
    -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "stream": true, "max_tokens": 64,
         "messages": [{{"role": "user", "content": "What is a toll keeper?"}}]}}'

or with the OpenAI SDK:

  from openai import OpenAI
  client = OpenAI(base_url="{base}/v1", api_key="{tenant.project_key}")
  stream = client.chat.completions.create(
      model="{model}", stream=True, max_tokens=64,
      messages=[{{"role": "user", "content": "What is a toll keeper?"}}])
  for chunk in stream:
      print(chunk.choices[0].delta.content or "", end="", flush=True)

Show the costs:  tollkeeper costs {tenant.organization_id}
Ctrl-C stops everything.
"""
