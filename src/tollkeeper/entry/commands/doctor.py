"""`tollkeeper doctor`: checks settings, database, backends and judge, with one line per finding."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.database.fence import find_newest_server
from tollkeeper.database.schema import (
    SchemaTooOld,
    check_database,
    connections_allowed,
    find_recovery_targets,
)
from tollkeeper.database.sessions import shown_hosts
from tollkeeper.entry.backend_probe import CONNECT_TIMEOUT_S, engine_state, reach
from tollkeeper.entry.commands.command import Invocation, command, command_app
from tollkeeper.entry.commands.database import command_database
from tollkeeper.entry.commands.output import Listing
from tollkeeper.entry.commands.progress import working
from tollkeeper.entry.commands.settings_warnings import settings_warnings
from tollkeeper.entry.descriptors import CONNECTIONS_MAX, connections_within, hard_limit
from tollkeeper.policies.judge.judge import Question
from tollkeeper.providers.model_list import ListOutcome, ModelList
from tollkeeper.providers.presets import PRESETS
from tollkeeper.setup import build_catalog, judge_with_engine, master_secret, running_engine
from tollkeeper.setup.backend_trial import models_of_replica
from tollkeeper.setup.embedded.engine import EmbeddedEngine
from tollkeeper.setup.identities import check_identity, shown_credential
from tollkeeper.setup.settings import (
    IDENTITY_CREDENTIALS,
    BackendSettings,
    Place,
    Settings,
    SettingsError,
    SettingsSource,
    settings_source,
    shown_variable,
)
from tollkeeper.setup.settings.wording import nearest
from tollkeeper.setup.telemetry import CONTENT, CONTENT_BYTES, collector, import_sdk, sends_content
from tollkeeper.setup.webhook import alert_webhook

# A usable judge answers the first question with yes and the second with no.
_JUDGED_TEXT = "Our parcel arrived on Monday, but the box was empty."
_QUESTIONS = (
    Question("doctor-yes", "Does the text speak of a parcel?"),
    Question("doctor-no", "Does the text contain a telephone number?"),
)
# In percent: a usable judge's scores are above for yes, and below for no.
_HALF = 50

# Of commands, consoles and backups, beside a gateway.
_OTHER_CONNECTIONS = 20

app = command_app()


class CheckResult(StrEnum):
    OK = "ok"
    WARNING = "warning"
    BAD = "bad"


# Name, result and detail.
Finding = tuple[str, CheckResult, str]


@command(app, "doctor", example="tollkeeper doctor")
def doctor(invocation: Invocation) -> Listing:
    """Check settings, database, backends and policy judge."""
    with working("Checking settings, database, backends and judge", quiet=invocation.as_json):
        findings = examine(invocation)
    bad = [name for name, result, _ in findings if result is CheckResult.BAD]
    shown = ", ".join(dict.fromkeys(bad))
    return Listing(
        [
            {"name": name, "verdict": result.value, "detail": detail}
            for name, result, detail in findings
        ],
        columns=("name", "verdict", "detail"),
        summary={"ok": not bad},
        refusal=f"{len(bad)} of {len(findings)} checks failed: {shown}." if bad else "",
    )


def examine(invocation: Invocation) -> list[Finding]:
    """Every other check uses the settings, so none runs if they're invalid."""
    try:
        settings = invocation.settings()
        build_catalog(settings)
    except SettingsError as exc:
        faults = invocation.located(exc).splitlines()
        return [("settings", CheckResult.BAD, fault) for fault in faults]
    source = settings_source(invocation.config)
    findings: list[Finding] = [("settings", CheckResult.OK, f"models: {len(settings.models)}")]
    findings += [
        ("settings", CheckResult.WARNING, source.explain(at, words))
        for at, words in settings_warnings(settings)
    ]
    findings.append(_run_check("master secret", source, lambda: _master_secret(settings)))
    findings += _database(settings, source)
    findings.append(_descriptors())
    if settings.alerts.webhook.url:
        findings.append(_run_check("alerts", source, lambda: _webhook(settings)))
    if collector():
        findings.append(_telemetry())
    return findings + asyncio.run(_backends_and_judge(settings, source))


def _run_check(name: str, source: SettingsSource, check: Callable[[], str]) -> Finding:
    try:
        return name, CheckResult.OK, check()
    except SchemaTooOld as exc:
        # In an upgrade, the new doctor runs before the migration.
        return name, CheckResult.WARNING, str(exc)
    except SettingsError as exc:
        return name, CheckResult.BAD, source.located(exc)
    except TollkeeperError as exc:
        return name, CheckResult.BAD, str(exc)
    except OSError as exc:
        return name, CheckResult.BAD, f"{exc.filename}: {exc.strerror}"


def _master_secret(settings: Settings) -> str:
    master_secret(settings)
    return "present"


def _database(settings: Settings, source: SettingsSource) -> list[Finding]:
    warnings: list[str] = []

    def check() -> str:
        with command_database(settings) as conninfo:
            address, old_servers = find_newest_server(conninfo, settings.database.seen_file)
            warnings.extend(old_servers)
            state = check_database(address, before_serving=True)
            warnings.extend(_connections_warning(settings, source, connections_allowed(address)))
            if targets := find_recovery_targets(address):
                warnings.append(_recovery_targets_warning(targets))
        database = settings.database
        server = shown_hosts(database.url) if database.url else f"embedded in {database.data_dir}"
        return f"{server}, durable, schema {state.description}"

    finding = _run_check("database", source, check)
    return [finding, *(("database", CheckResult.WARNING, words) for words in warnings)]


def _connections_warning(settings: Settings, source: SettingsSource, allowed: int) -> Iterator[str]:
    """If one gateway alone may need more than the server allows."""
    workers, pool_size = settings.server.workers, settings.database.pool_size
    needed = workers * pool_size + _OTHER_CONNECTIONS
    if needed > allowed:
        words = (
            f"one gateway needs {needed} connections ({workers} x {pool_size} for its workers, "
            f"{_OTHER_CONNECTIONS} for commands, consoles and backups), but the server allows "
            f"{allowed}: lower it, or raise max_connections"
        )
        yield source.explain(("database", "pool_size"), words)


def _recovery_targets_warning(targets: Iterable[str]) -> str:
    resets = " ".join(f"ALTER SYSTEM RESET {target};" for target in targets)
    return (
        f"{', '.join(targets)} are still set from a restore: a standby that is created from this "
        "server would stop or promote itself at this target. "
        f"Run: {resets} SELECT pg_reload_conf();"
    )


def _descriptors() -> Finding:
    """Open files. A service manager may set another limit for the gateway."""
    limit = hard_limit()
    possible = connections_within(limit)
    detail = f"a limit of {limit}, so {possible} connections in each worker"
    if possible < CONNECTIONS_MAX:
        detail += f"; for {CONNECTIONS_MAX} raise the hard limit to {2 * CONNECTIONS_MAX}"
        return "open files", CheckResult.WARNING, detail
    return "open files", CheckResult.OK, detail


def _webhook(settings: Settings) -> str:
    """Doesn't show the address, which may contain a secret."""
    alert_webhook(settings)
    return "alerts are signed and posted to the webhook; this check posted nothing"


def _telemetry() -> Finding:
    try:
        import_sdk()
    except SettingsError as exc:
        return "telemetry", CheckResult.BAD, str(exc)
    if not sends_content():
        return "telemetry", CheckResult.OK, f"traces without content go to {collector()}"
    detail = (
        f"{CONTENT} is set: prompts and answers of every organization go to "
        f"{collector()}, up to {CONTENT_BYTES} bytes of each call"
    )
    return "telemetry", CheckResult.WARNING, detail


async def _backends_and_judge(settings: Settings, source: SettingsSource) -> list[Finding]:
    """Starts the embedded engine once, because a backend and the judge may use it."""
    async with running_engine(settings) as engine:
        findings = await _backends(settings, source, engine)
        return [*findings, await _judge(settings, source, engine)]


async def _backends(
    settings: Settings, source: SettingsSource, engine: EmbeddedEngine | None
) -> list[Finding]:
    """Concurrently, so the timeouts don't add up."""
    checks = []
    findings: list[Finding] = []
    for backend in settings.backends:
        name = f"backend {backend.name}"
        if backend.kind == "embedded":
            findings.append((name, *_engine(settings, backend, engine)))
            continue
        if backend.preset:
            findings.append((f"{name} preset", CheckResult.OK, _preset(backend)))
        findings += [
            (name, CheckResult.BAD, source.explain(("backends", backend.name, setting), words))
            for setting, words in _missing_files_and_secrets(backend)
        ]
        if backend.credential in IDENTITY_CREDENTIALS:
            checks.append(_credential(f"{name} credential", backend, source))
        checks += [_replica(settings, backend, url, source) for url in backend.urls]
    return [*findings, *chain.from_iterable(await asyncio.gather(*checks))]


def _preset(backend: BackendSettings) -> str:
    """With the operator's own changes."""
    preset = PRESETS[backend.preset]
    is_identity = backend.credential in IDENTITY_CREDENTIALS
    credential = backend.credential if is_identity else shown_credential(backend)
    parts = [f"protocol {backend.protocol}", credential]
    if backend.protocol == "chat":
        if not preset.bounds_reasoning:
            parts.append("the output limit does not cover reasoning")
        fields = backend.fields.items()
        parts += [
            f"{label} {', '.join(names)}"
            for label, names in (
                ("refused", [name for name, sent_as in fields if sent_as is False]),
                ("renamed", [f"{name} to {sent_as}" for name, sent_as in fields if sent_as]),
                ("omitted", [name for name, sent_as in fields if sent_as == ""]),
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
        return CheckResult.WARNING, "embedded.enabled is false: the backend's models cannot answer"
    state = engine_state(engine)
    if not state.ok or engine.report is None:
        return CheckResult.BAD, state.detail
    engine_models = [model for model in settings.models if model.backend == backend.name]
    available = engine.report.context_length
    too_long = [model.id for model in engine_models if model.context_length > available]
    if too_long:
        return (
            CheckResult.BAD,
            f"{state.detail} These models declare a longer context: {', '.join(too_long)}.",
        )
    return CheckResult.OK, state.detail


def _missing_files_and_secrets(backend: BackendSettings) -> Iterator[tuple[str, str]]:
    """And why: no such variable, or an unreadable file."""
    if backend.api_key_env and not os.environ.get(backend.api_key_env):
        yield "api_key_env", f"{shown_variable(backend.api_key_env)} is not set"
    for setting in ("api_key_file", "tls_ca_file"):
        path = getattr(backend, setting)
        if path and not os.access(path, os.R_OK):
            yield setting, f"{path} cannot be read"


async def _credential(name: str, backend: BackendSettings, source: SettingsSource) -> list[Finding]:
    """As a call does. The provider doesn't charge for this."""
    try:
        return [(name, CheckResult.OK, await check_identity(backend))]
    except SettingsError as exc:
        return [(name, CheckResult.BAD, source.located(exc))]


async def _replica(
    settings: Settings, backend: BackendSettings, url: str, source: SettingsSource
) -> list[Finding]:
    """Asks for its models too, with the key of calls."""
    name = f"backend {backend.name}"
    reached = await reach(url, min(backend.connect_timeout_s, CONNECT_TIMEOUT_S))
    if not reached.ok:
        return [(name, CheckResult.BAD, reached.detail)]
    listed = await models_of_replica(backend, url)
    detail = f"{reached.detail}; "
    match listed.outcome:
        case ListOutcome.NOT_ASKED:
            return [(name, CheckResult.OK, reached.detail)]
        case ListOutcome.LISTED:
            found = (name, CheckResult.OK, f"{detail}it lists {len(listed.names)} models")
            return [found, *_unlisted(settings, backend, listed, source)]
        case ListOutcome.KEY_REFUSED:
            words = f"{url} refuses the backend's key ({listed.detail})"
            place: Place = ("backends", backend.name, _key_setting(backend))
            return [(name, CheckResult.BAD, source.explain(place, words))]
        case ListOutcome.NO_LIST if backend.preset and url in PRESETS[
            backend.preset
        ].settings().get("urls", ()):
            return [(name, CheckResult.OK, f"{detail}it lists no models")]
        case ListOutcome.NO_LIST:
            words = (
                f"{url}/models gave {listed.detail}: check the path of the address; most end in /v1"
            )
            return [
                (
                    name,
                    CheckResult.WARNING,
                    source.explain(("backends", backend.name, "urls"), words),
                )
            ]
    return [(name, CheckResult.WARNING, f"{detail}its models are unknown: {listed.detail}")]


def _key_setting(backend: BackendSettings) -> str:
    return "api_key_file" if backend.api_key_file else "api_key_env"


def _unlisted(
    settings: Settings, backend: BackendSettings, listed: ModelList, source: SettingsSource
) -> Iterator[Finding]:
    """Models that the backend doesn't list."""
    named: list[tuple[Place, str, str]] = []
    for model in settings.models:
        place: Place = ("models", model.id)
        named.append(((*place, "upstream_model"), model.backend, model.upstream_model))
        for position, other in enumerate(model.alternatives):
            upstream_model = other.upstream_model or model.upstream_model
            named.append(((*place, "alternatives", position), other.backend, upstream_model))
    if settings.judge is not None:
        named.append((("judge", "model"), settings.judge.backend, settings.judge.model))
    for place, backend_name, upstream_model in named:
        if backend_name == backend.name and not listed.has(upstream_model):
            close = nearest(upstream_model, tuple(sorted(listed.names)))
            words = f"the backend {backend.name} does not list a model {upstream_model!r}{close}"
            yield f"backend {backend.name}", CheckResult.WARNING, source.explain(place, words)


async def _judge(
    settings: Settings, source: SettingsSource, engine: EmbeddedEngine | None
) -> Finding:
    """With real questions: only an answer shows that the backend returns log-probabilities."""
    declared = settings.judge
    if declared is None:
        detail = "not configured: calls under an enforcing policy are answered with 503"
        return "judge", CheckResult.WARNING, detail
    judge_name = f"{declared.model} on the backend {declared.backend}"
    try:
        async with judge_with_engine(settings, engine) as judge:
            opinions = await judge.ask_all(_JUDGED_TEXT, _QUESTIONS)
    except SettingsError as exc:
        return "judge", CheckResult.BAD, source.located(exc)
    except TollkeeperError as exc:
        return "judge", CheckResult.BAD, source.explain(("judge", "model"), f"{judge_name}: {exc}")
    failed = next((opinion.reason for opinion in opinions if opinion.score is None), None)
    if failed is not None:
        return (
            "judge",
            CheckResult.BAD,
            source.explain(("judge", "model"), f"{judge_name}: {failed}"),
        )
    yes, no = ((opinion.basis_points or 0) / 100 for opinion in opinions)
    seconds = max(opinion.seconds for opinion in opinions)
    detail = (
        f"{judge_name}: scored {yes:.2f} % if the answer is yes and {no:.2f} % if it is no, in "
        f"{seconds:.1f} s"
    )
    if yes > _HALF > no:
        return "judge", CheckResult.OK, detail
    unfit = (
        f"{detail}; a usable judge scores more than {_HALF} % for yes and less than {_HALF} % for no: "
        "name a model that follows instructions better"
    )
    return "judge", CheckResult.WARNING, source.explain(("judge", "model"), unfit)
