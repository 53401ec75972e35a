"""`tollkeeper doctor`: does everything stand that the gateway needs? One line and a verdict each."""

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from tollkeeper.bootstrap import build_catalog, located_database, master_secret
from tollkeeper.cli.answers import Listing
from tollkeeper.cli.command import Invocation, command, command_app
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.settings import BackendSettings, Settings, SettingsError
from tollkeeper.storage.schema import check_database, code_revision

_CONNECT_TIMEOUT_S = 3.0
_ENGINE_PACKAGE = "xllamacpp"
_DEFAULT_PORTS = {"http": 80, "https": 443}

app = command_app()


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    BAD = "bad"


Finding = tuple[str, Verdict, str]


@command(app, "doctor")
def doctor(invocation: Invocation) -> Listing:
    """Check settings, database, backends and judge."""
    findings = _examine(invocation)
    bad = [name for name, verdict, _ in findings if verdict is Verdict.BAD]
    return Listing(
        [
            {"name": name, "verdict": verdict.value, "detail": detail}
            for name, verdict, detail in findings
        ],
        columns=("name", "verdict", "detail"),
        summary={"ok": not bad},
        refusal=f"{len(bad)} of {len(findings)} checks are bad: {', '.join(bad)}." if bad else "",
    )


def _examine(invocation: Invocation) -> list[Finding]:
    try:
        settings = invocation.settings()
        build_catalog(settings)
    except SettingsError as exc:
        return [("settings", Verdict.BAD, "; ".join(str(exc).splitlines()))]
    findings: list[Finding] = [("settings", Verdict.OK, f"models: {len(settings.models)}")]
    findings.append(_attempt("master secret", lambda: _master_secret(settings)))
    findings.append(_attempt("database", lambda: _database(settings)))
    findings += asyncio.run(_backends(settings))
    findings.append(_judge(settings))
    return findings


def _attempt(name: str, check: Callable[[], str]) -> Finding:
    try:
        return name, Verdict.OK, check()
    except (SettingsError, TollkeeperError) as exc:
        return name, Verdict.BAD, str(exc)
    except OSError as exc:
        return name, Verdict.BAD, f"{exc.filename}: {exc.strerror}"


def _master_secret(settings: Settings) -> str:
    master_secret(settings)
    return "present"


def _database(settings: Settings) -> str:
    with located_database(settings) as conninfo:
        check_database(conninfo)
    kind = "the operator's own" if settings.database.url else "embedded"
    return f"{kind}, durable, schema {code_revision()}"


async def _backends(settings: Settings) -> list[Finding]:
    """Every replica at once: many that are down must not add up."""
    checks = []
    findings: list[Finding] = []
    for backend in settings.backends:
        name = f"backend {backend.name}"
        if backend.kind == "embedded":
            findings.append((name, *_engine(settings)))
            continue
        credential = _credential_fault(backend)
        if credential:
            findings.append((name, Verdict.BAD, credential))
        checks += [_replica(name, url, backend.connect_timeout_s) for url in backend.urls]
    return findings + await asyncio.gather(*checks)


def _engine(settings: Settings) -> tuple[Verdict, str]:
    embedded = settings.embedded
    if not embedded.enabled:
        return Verdict.WARNING, "embedded.enabled is false: its models cannot answer"
    if importlib.util.find_spec(_ENGINE_PACKAGE) is None:
        return Verdict.BAD, "the engine is not installed: add the extra tollkeeper[embedded]"
    if embedded.model_path and not Path(embedded.model_path).is_file():
        return Verdict.BAD, f"embedded.model_path = {embedded.model_path}: there is no such file"
    return Verdict.OK, "the engine is installed"


def _credential_fault(backend: BackendSettings) -> str:
    if backend.api_key_env and not os.environ.get(backend.api_key_env):
        return f"api_key_env: ${backend.api_key_env} is not set"
    if backend.api_key_file and not os.access(backend.api_key_file, os.R_OK):
        return f"api_key_file: {backend.api_key_file} cannot be read"
    return ""


async def _replica(name: str, url: str, timeout_s: float) -> Finding:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme]
    except ValueError as exc:
        return name, Verdict.BAD, f"{url}: {exc}"
    if not host:
        return name, Verdict.BAD, f"{url} names no host"
    try:
        async with asyncio.timeout(min(timeout_s, _CONNECT_TIMEOUT_S)):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return name, Verdict.BAD, f"{url} does not answer in time"
    except OSError as exc:
        return name, Verdict.BAD, f"{url} cannot be reached: {_reason(exc)}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return name, Verdict.OK, f"{url} accepts connections"


def _reason(exc: OSError) -> str:
    # A name that cannot be resolved has an error number of its own kind.
    return os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror or str(exc)


def _judge(settings: Settings) -> Finding:
    judge = settings.judge
    if judge is None:
        detail = "not configured: calls under an enforcing policy are answered with 503"
        return "judge", Verdict.WARNING, detail
    return "judge", Verdict.OK, f"{judge.model} on the backend {judge.backend}"
