"""`tollkeeper demo` (`make serve`): gateway, console, database and model server on one machine,
with a demo organization."""

import asyncio
import dataclasses
import json
import os
import shlex
import shutil
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tollkeeper.core.errors import Unauthenticated
from tollkeeper.core.runtime.output import log_output, standard_output
from tollkeeper.database.migrations import migrate
from tollkeeper.entry.commands.command import Invocation, command, command_app
from tollkeeper.entry.commands.database import check_newest_server, command_database
from tollkeeper.entry.commands.demo_console import DemoConsole, console_listener, running_console
from tollkeeper.entry.commands.event_loop import run_in_loop
from tollkeeper.entry.commands.serve import listeners
from tollkeeper.entry.logs import configure_logs
from tollkeeper.entry.supervisor import Supervisor, describe
from tollkeeper.setup import check_settings, running_services
from tollkeeper.setup.demonstration import DEMO_CREDIT_USD, Demonstration, DemoTenant
from tollkeeper.setup.embedded.engine import START_TIMEOUT_S
from tollkeeper.setup.settings import Settings

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = command_app()
# For the welcome page; commands accept an id's beginning.
_ID_BEGINNING_LENGTH = 8
# On the welcome page, in characters.
_ENGINE_STATE_WIDTH = 64


@dataclass(frozen=True, slots=True)
class RunningDemo:
    """For the welcome page."""

    model: str
    # The beginning, from a shell in the current folder.
    command: str
    tenant: DemoTenant
    console: DemoConsole
    addresses: dict[str, str]


@command(app, "demo", example="tollkeeper demo", begins=True)
def demo(invocation: Invocation) -> None:
    """Run gateway, console and database with a demo organization.

    Everything runs on this machine, including a small model. The output shows the addresses, the keys
    and a first request."""
    settings = _demo_settings(invocation.settings())
    check_settings(settings)
    with ExitStack() as stack:
        public, operator = listeners(settings, stack)
        console_socket = console_listener(settings)
        configure_logs()
        log_output.write_line("Starting PostgreSQL ...")
        conninfo = stack.enter_context(command_database(settings))
        migrate(conninfo)
        check_newest_server(settings, conninfo, before_serving=True)
        log_output.write_line("Starting the console ...")
        tenant = run_in_loop(lambda: _demo_tenant(settings, conninfo))
        console = stack.enter_context(running_console(settings, invocation.config, console_socket))
        addresses = describe(public, operator)
        assert invocation.worker_starter is not None
        supervisor = Supervisor(
            settings,
            conninfo,
            public=public,
            operator=operator,
            reload=lambda: _demo_settings(invocation.settings()),
            worker_starter=invocation.worker_starter,
            on_stop=lambda: log_output.write_line("\nStopping ..."),
        )
        running = RunningDemo(
            model=settings.models[0].id if settings.models else "MODEL",
            command=pasted_command(invocation.config),
            tenant=tenant,
            console=console,
            addresses=addresses,
        )
        log_output.write_line("Starting the gateway ...")
        run_in_loop(lambda: _supervise(supervisor, running, as_json=invocation.as_json))
    log_output.write_line(f"Stopped. All data stays in {settings.database.data_dir}.")


def _demo_settings(settings: Settings) -> Settings:
    """With Anthropic's Messages API, which Claude Code needs."""
    extensions = settings.extensions.model_copy(update={"messages": True})
    return settings.model_copy(update={"extensions": extensions})


async def _supervise(supervisor: Supervisor, running: RunningDemo, *, as_json: bool) -> None:
    announcements: list[asyncio.Task[None]] = []

    def on_ready() -> None:
        announcements.append(asyncio.create_task(welcome()))

    async def welcome() -> None:
        log_output.write_line("Loading the model ...")
        engine = await supervisor.wait_for_engine(START_TIMEOUT_S)
        if as_json:
            standard_output.write_line(json.dumps(_document(running, engine)))
        else:
            standard_output.write_line(_welcome(running, engine))

    await supervisor.run(on_ready=on_ready)
    for task in announcements:
        task.cancel()
    await asyncio.gather(*announcements, return_exceptions=True)


async def _demo_tenant(settings: Settings, conninfo: str) -> DemoTenant:
    """The first start stores the keys in the data folder, in a file that only its owner can read.
    If they aren't valid, for example with another database, creates a new organization."""
    path = settings.database.data_dir / "demo.json"
    async with running_services(settings, conninfo) as services:
        if path.exists():
            stored = DemoTenant(**json.loads(path.read_text()))
            if await _has_valid_keys(services, stored):
                return stored
        tenant = await Demonstration(
            services.organizations,
            services.projects,
            services.admin_keys,
            services.project_keys,
            services.accounts,
        ).demo_create()
    _write_private_file(path, json.dumps(dataclasses.asdict(tenant)))
    return tenant


async def _has_valid_keys(services: "Services", tenant: DemoTenant) -> bool:
    try:
        for key in (tenant.admin_key, tenant.project_key):
            await services.authentication.authenticate(key)
    except Unauthenticated:
        return False
    return True


def _write_private_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _document(running: RunningDemo, engine: str) -> dict[str, str]:
    return {
        **running.addresses,
        **dataclasses.asdict(running.tenant),
        "engine": engine,
        "console": running.console.address,
        "operator_token": running.console.token,
    }


def _welcome(running: RunningDemo, engine: str) -> str:
    """Fits on a screen. Its commands can be pasted in the current folder."""
    tenant, console = running.tenant, running.console
    base = running.addresses["public"]
    # Only the beginning fits; /readyz and the log have all of it.
    engine_state = textwrap.shorten(engine, _ENGINE_STATE_WIDTH, placeholder=" ...")
    return f"""
tollkeeper is running. Ctrl-C stops everything.

  console       {console.address or "not installed: pip install 'tollkeeper[console]'"}
  console token {console.token or "the token of console.token_sha256 in your settings"}
  API           {base}/v1
  operators     {running.addresses["operator"]}  (/healthz /readyz /alerts /metrics)
  engine        {engine_state}
  organization  {tenant.organization_id}, with {DEMO_CREDIT_USD} USD at first
  project key   {tenant.project_key}
  admin key     {tenant.admin_key}

Send a request from a second terminal:
  curl -N {base}/v1/chat/completions \\
    -H 'Authorization: Bearer {tenant.project_key}' \\
    -H 'Content-Type: application/json' \\
    -d '{{"model": "{running.model}", "stream": true,
         "max_tokens": 64,
         "messages": [{{"role": "user", "content": "What is a toll keeper?"}}]}}'

or with the OpenAI SDK:
  from openai import OpenAI
  client = OpenAI(base_url="{base}/v1",
                  api_key="{tenant.project_key}")
  print(client.chat.completions.create(
      model="{running.model}", max_tokens=64,
      messages=[{{"role": "user", "content": "What is a toll keeper?"}}]))

Show the costs:  {running.command} costs {tenant.organization_id[:_ID_BEGINNING_LENGTH]}
"""


_PROGRAM = "tollkeeper"


def pasted_command(config: Path | None) -> str:
    """The shortest with the same settings file."""
    installed = Path(sys.executable).parent / _PROGRAM
    on_path = shutil.which(_PROGRAM)
    if on_path is not None and installed.exists() and Path(on_path).samefile(installed):
        words = [_PROGRAM]
    elif installed.exists():
        words = [_shortest_path(installed)]
    else:
        words = [_shortest_path(Path(sys.executable)), "-m", _PROGRAM]
    if config is not None:
        words += ["--config", str(config)]
    return shlex.join(words)


def _shortest_path(path: Path) -> str:
    """Relative, if it's inside the current folder."""
    # Not through links: a virtual environment's Python links to the system's, which has no
    # tollkeeper.
    folder = Path(os.path.abspath(os.curdir))  # noqa: PTH100
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
