"""Starts the console: checks that its address is safe and its certificate can be used, determines the
allowed host names, creates the console's objects and runs the server."""

import socket
import ssl
from functools import partial
from pathlib import Path

from starlette.applications import Starlette

from tollkeeper.console.app import build_console
from tollkeeper.console.context import Console, MachineChecks, OpenJudge
from tollkeeper.console.identity_provider import IdentityProvider
from tollkeeper.console.lease import held_lease
from tollkeeper.console.replica_watch import ReplicaWatch
from tollkeeper.console.server import CONNECTIONS_MAX, TakeSignals, serve
from tollkeeper.console.sessions import WRONG_TOKENS_MAX, Sessions, WrongAttempts
from tollkeeper.console.stored_sessions import ConsoleSessions
from tollkeeper.core.errors import StateConflict
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.setup import master_secret, running_judge, running_services, signature_check
from tollkeeper.setup.secrets import read_source
from tollkeeper.setup.services import Services
from tollkeeper.setup.settings import Settings, SettingsError
from tollkeeper.setup.settings.origins import setting_origins
from tollkeeper.setup.settings.schema import is_loopback


def require_safe_address(settings: Settings) -> None:
    """Raises StateConflict if browsers would send the operator token unencrypted over a network. A
    trusted proxy is assumed to use HTTPS. Raises SettingsError if the certificate cannot be used."""
    console = settings.console
    if console.tls_files:
        _require_certificate(*console.tls_files)
    elif console.is_exposed:
        raise StateConflict(
            f"console.host = {console.host} is not loopback: set console.tls_files, or "
            "console.trusted_proxies for a proxy that speaks HTTPS."
        )


def _require_certificate(certificate: str, key: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as exc:
        is_read = isinstance(exc, ssl.SSLError)
        reason = "they are not a PEM certificate and its key" if is_read else exc.strerror
        raise SettingsError(
            f"the files cannot be used: {reason}", ("console", "tls_files")
        ) from exc


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """Returns the host names under which browsers may reach the console."""
    console = settings.console
    listening_host = f"[{console.host}]" if ":" in console.host else console.host
    loopback = ("localhost", "127.0.0.1", "[::1]") if is_loopback(console.host) else ()
    return frozenset(name.lower() for name in (listening_host, *loopback, *console.allowed_hosts))


def _is_secure(settings: Settings) -> bool:
    """Tells whether browsers reach the console over HTTPS, directly or through a trusted proxy."""
    console = settings.console
    return bool(console.tls_files or console.trusted_proxies)


def create_console(
    settings: Settings,
    services: Services,
    token_sha256: str,
    *,
    config: Path | None,
    machine: MachineChecks,
    open_judge: OpenJudge | None = None,
) -> Starlette:
    vault, sign_in = Vault(master_secret(settings)), settings.console.sign_in
    sessions = Sessions(
        vault,
        ConsoleSessions(services.database, services.clock),
        token_sha256=token_sha256,
        sign_in=sign_in.model_dump_json().encode() if sign_in.issuer else b"",
    )
    judge = None if settings.judge is None else open_judge or partial(running_judge, settings)
    console = Console(
        services=services,
        settings=settings,
        origins=setting_origins(settings, config),
        sessions=sessions,
        wrong_tokens=WrongAttempts(services.clock, WRONG_TOKENS_MAX),
        wrong_codes=WrongAttempts(services.clock),
        vault=vault,
        provider=_provider(settings, services.clock),
        last_probe=ReplicaWatch(machine.probe_replicas),
        machine=machine,
        open_judge=judge,
        secure=_is_secure(settings),
        signed_livemode=signature_check(settings),
    )
    return build_console(console, allowed_hosts(settings))


def _provider(settings: Settings, clock: Clock) -> IdentityProvider | None:
    sign_in = settings.console.sign_in
    if not sign_in.issuer:
        return None
    at = ("console", "sign_in", "client_secret")
    try:
        secret = read_source(sign_in.client_secret, at).decode() if sign_in.client_secret else ""
    except UnicodeError:
        raise SettingsError("the secret is not UTF-8 text", at) from None
    return IdentityProvider(sign_in, secret, clock)


async def run_console(
    settings: Settings,
    conninfo: str,
    listener: socket.socket,
    token_sha256: str,
    *,
    config: Path | None,
    machine: MachineChecks,
    take_signals: TakeSignals,
    connections_max: int = CONNECTIONS_MAX,
) -> None:
    """Serves the console until SIGTERM or SIGINT. `connections_max` is what the process's limit of
    open files allows. Raises StateConflict if the database schema
    becomes too new for this version of the code."""
    async with (
        running_services(settings, conninfo) as services,
        held_lease(services.database),
    ):
        app = create_console(settings, services, token_sha256, config=config, machine=machine)
        await serve(app, settings, listener, take_signals, connections_max)
