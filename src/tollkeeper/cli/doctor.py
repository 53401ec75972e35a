"""`tollkeeper doctor`: checks everything that the gateway needs, with one line for each check."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from enum import StrEnum

from tollkeeper.backends.config import shown_url
from tollkeeper.backends.presets import PRESETS
from tollkeeper.bootstrap import (
    build_bridge,
    build_catalog,
    judge_over,
    master_secret,
    running_bridge,
    running_engine,
)
from tollkeeper.bootstrap.identities import check_identity, shown_credential
from tollkeeper.bootstrap.telemetry import import_sdk
from tollkeeper.bootstrap.webhook import alert_webhook
from tollkeeper.cli.command import Invocation, command, command_app
from tollkeeper.cli.database import command_database
from tollkeeper.cli.output import Listing
from tollkeeper.cli.progress import working
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.embedded.engine import EmbeddedEngine
from tollkeeper.embedded.provider_bridge import ProviderBridge
from tollkeeper.hosting.backend_probe import (
    CONNECT_TIMEOUT_S,
    bridge_state,
    engine_state,
    reach,
)
from tollkeeper.hosting.descriptors import connections_within, hard_limit
from tollkeeper.services.policies.judge import Question
from tollkeeper.settings import (
    IDENTITY_CREDENTIALS,
    BackendSettings,
    Settings,
    SettingsError,
    shown_variable,
)
from tollkeeper.storage.schema import check_database

# A text and a question about it that any judge can answer.
_TEXT = "Our parcel arrived on Monday, but the box was empty."
_QUESTION = Question("doctor", "Does the text speak of a parcel?")
_FITTING_YES = 50

app = command_app()


class CheckResult(StrEnum):
    OK = "ok"
    WARNING = "warning"
    BAD = "bad"


Finding = tuple[str, CheckResult, str]


@command(app, "doctor", example="tollkeeper doctor")
def doctor(invocation: Invocation) -> Listing:
    """Check settings, database, backends and judge."""
    with working("Checking settings, database, backends and judge", quiet=invocation.as_json):
        findings = _examine(invocation)
    bad = [name for name, verdict, _ in findings if verdict is CheckResult.BAD]
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
        return [("settings", CheckResult.BAD, "; ".join(str(exc).splitlines()))]
    findings: list[Finding] = [("settings", CheckResult.OK, f"models: {len(settings.models)}")]
    findings.append(_run_check("master secret", lambda: _master_secret(settings)))
    findings.append(_run_check("database", lambda: _database(settings)))
    findings.append(_descriptors(settings))
    if settings.alerts.webhook_url:
        findings.append(_run_check("alerts", lambda: _webhook(settings)))
    if settings.telemetry.endpoint:
        findings.append(_telemetry(settings))
    return findings + asyncio.run(_backends_and_judge(settings))


def _run_check(name: str, check: Callable[[], str]) -> Finding:
    try:
        return name, CheckResult.OK, check()
    except (SettingsError, TollkeeperError) as exc:
        return name, CheckResult.BAD, str(exc)
    except OSError as exc:
        return name, CheckResult.BAD, f"{exc.filename}: {exc.strerror}"


def _master_secret(settings: Settings) -> str:
    master_secret(settings)
    return "present"


def _database(settings: Settings) -> str:
    with command_database(settings) as conninfo:
        state = check_database(conninfo, before_serving=True)
    declared = settings.database
    which = shown_url(declared.url) if declared.url else f"embedded in {declared.data_dir}"
    return f"{which}, durable, schema {state.description}"


def _descriptors(settings: Settings) -> Finding:
    """Of this process: a service manager may give another limit to the gateway."""
    limit, connections = hard_limit(), settings.server.connections
    possible = min(connections, connections_within(limit))
    detail = f"a limit of {limit}, so {possible} connections in each worker"
    if possible < connections:
        advice = f"raise the hard limit to {2 * connections} or lower the setting"
        detail += f"; server.connections is {connections}: {advice}"
        return "open files", CheckResult.WARNING, detail
    return "open files", CheckResult.OK, detail


def _webhook(settings: Settings) -> str:
    """The address is not shown: it may hold a secret."""
    alert_webhook(settings)
    return "posted to the webhook and signed; nothing was posted now"


def _telemetry(settings: Settings) -> Finding:
    declared = settings.telemetry
    try:
        import_sdk()
    except SettingsError as exc:
        return "telemetry", CheckResult.BAD, str(exc)
    if not declared.content:
        return "telemetry", CheckResult.OK, f"traces without content go to {declared.endpoint}"
    detail = (
        "telemetry.content is true: prompts and answers of every organization go to "
        f"{declared.endpoint}, up to {declared.content_bytes} bytes of each call"
    )
    return "telemetry", CheckResult.WARNING, detail


async def _backends_and_judge(settings: Settings) -> list[Finding]:
    """Starts one engine and one bridge for both, because the judge may use them too."""
    found: list[Finding] = []
    try:
        build_bridge(settings)
    except SettingsError as exc:  # the library, or a key for it, is missing
        found.append(("library", CheckResult.BAD, str(exc)))
    async with (
        running_engine(settings) as engine,
        nullcontext() if found else running_bridge(settings) as bridge,
    ):
        found += await _backends(settings, engine, bridge)
        return [*found, await _judge(settings, engine, bridge)]


async def _backends(
    settings: Settings, engine: EmbeddedEngine | None, bridge: ProviderBridge | None
) -> list[Finding]:
    """Checks all replicas concurrently, so that the timeouts of several do not add up."""
    checks = []
    findings: list[Finding] = []
    for backend in settings.backends:
        name = f"backend {backend.name}"
        if backend.kind == "embedded":
            findings.append((name, *_engine(settings, backend, engine)))
            continue
        if backend.kind == "library":
            findings.append((name, *_library(backend, bridge)))
            continue
        if backend.preset:
            findings.append((f"{name} preset", CheckResult.OK, _preset(backend)))
        findings += [
            (name, CheckResult.BAD, fault) for fault in _missing_files_and_secrets(backend)
        ]
        if backend.credential in IDENTITY_CREDENTIALS:
            checks.append(_credential(f"{name} credential", backend))
        checks += [_replica(name, url, backend.connect_timeout_s) for url in backend.urls]
    return findings + await asyncio.gather(*checks)


def _preset(backend: BackendSettings) -> str:
    """What the preset stands for here, with what the settings change of it."""
    preset = PRESETS[backend.preset]
    is_identity = backend.credential in IDENTITY_CREDENTIALS
    key = backend.credential if is_identity else shown_credential(backend)
    parts = [f"protocol {backend.protocol}", key]
    if backend.protocol == "chat":
        parts.append(f"output bound {backend.output_bound}")
        if not backend.bounds_reasoning:
            parts.append("reasoning beside the bound")
        parts.append("usage asked for" if backend.include_usage else "usage not asked for")
        parts += [
            f"{label} {', '.join(names)}"
            for label, names in (
                ("refused", backend.refused_fields),
                ("renamed", [f"{old} to {new}" for old, new in backend.renamed_fields.items()]),
                ("omitted", backend.omitted_fields),
            )
            if names
        ]
    if preset.tokens_per_image is not None:
        parts.append(f"{preset.tokens_per_image} tokens per image")
    return f"preset {backend.preset}: {'; '.join(parts)}"


def _engine(
    settings: Settings, backend: BackendSettings, engine: EmbeddedEngine | None
) -> tuple[CheckResult, str]:
    if engine is None:
        return CheckResult.WARNING, "embedded.enabled is false: its models cannot answer"
    state = engine_state(engine)
    if not state.ok or engine.report is None:
        return CheckResult.BAD, state.detail
    own = [model for model in settings.models if model.backend == backend.name]
    available = engine.report.context_length
    larger = [model.id for model in own if model.context_length > available]
    if larger:
        return (
            CheckResult.BAD,
            f"{state.detail} These models declare a longer context: {', '.join(larger)}.",
        )
    return CheckResult.OK, state.detail


def _library(backend: BackendSettings, bridge: ProviderBridge | None) -> tuple[CheckResult, str]:
    state = bridge_state(bridge, backend.name)
    if not state.ok:
        return CheckResult.BAD, state.detail
    hint = ""
    if backend.provider in PRESETS:
        hint = f" The preset {backend.provider} reaches it without the library, and exactly."
    served = f"{backend.provider}, {shown_credential(backend)}, {state.detail}."
    warning = "A charge is only as exact as what the library reports."
    return CheckResult.WARNING, f"{served} {warning}{hint}"


def _missing_files_and_secrets(backend: BackendSettings) -> Iterator[str]:
    """Secrets and certificates that the settings name and that this machine does not have."""
    if backend.api_key_env and not os.environ.get(backend.api_key_env):
        yield f"api_key_env: {shown_variable(backend.api_key_env)} is not set"
    for setting in ("api_key_file", "tls_ca_file"):
        path = getattr(backend, setting)
        if path and not os.access(path, os.R_OK):
            yield f"{setting}: {path} cannot be read"


async def _credential(name: str, backend: BackendSettings) -> Finding:
    """Obtains a token or keys, as calls will. The provider does not charge for that."""
    try:
        return name, CheckResult.OK, await check_identity(backend)
    except SettingsError as exc:
        return name, CheckResult.BAD, str(exc)


async def _replica(name: str, url: str, timeout_s: float) -> Finding:
    result = await reach(url, min(timeout_s, CONNECT_TIMEOUT_S))
    return name, CheckResult.OK if result.ok else CheckResult.BAD, result.detail


async def _judge(
    settings: Settings, engine: EmbeddedEngine | None, bridge: ProviderBridge | None
) -> Finding:
    """Asks the judge a real question: only an answer shows that it returns log-probabilities."""
    declared = settings.judge
    if declared is None:
        detail = "not configured: calls under an enforcing policy are answered with 503"
        return "judge", CheckResult.WARNING, detail
    who = f"{declared.model} on the backend {declared.backend}"
    try:
        async with judge_over(settings, engine, bridge) as judge:
            (opinion,) = await judge.ask_all(_TEXT, [_QUESTION])
    except (SettingsError, TollkeeperError) as exc:
        return "judge", CheckResult.BAD, f"{who}: {exc}"
    if opinion.highest is None:
        return "judge", CheckResult.BAD, f"{who}: {opinion.reason}"
    yes, took = opinion.highest / 100, opinion.seconds
    weak = "" if yes > _FITTING_YES else f"; a judge that fits gives more than {_FITTING_YES} %"
    detail = f"{who}: gave yes {yes:.2f} % for a plain yes, in {took:.1f} s{weak}"
    return "judge", CheckResult.OK, detail
