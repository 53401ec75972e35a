"""Tests that the deployment files fit the program's settings, commands, ports, paths and deadlines."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import tollkeeper
from tests.support.command_lines import parse_arguments, parse_line
from tests.support.tables import each
from tollkeeper.console.app import ROUTES as CONSOLE_ROUTES
from tollkeeper.console.gateway_call import gateway_url
from tollkeeper.console.pages import checks, months
from tollkeeper.console.start import require_safe_address
from tollkeeper.entry.descriptors import CONNECTIONS_MAX, KEEP_ALIVE_S
from tollkeeper.money.verification.service import EVERY_HOURS
from tollkeeper.providers.presets import PRESETS
from tollkeeper.setup import build_catalog
from tollkeeper.setup.app import http_conventions
from tollkeeper.setup.settings import Settings, load_settings

_ROOT = Path(__file__).parents[2]
_DEPLOY = _ROOT / "deploy"
_DOCKERFILE = (_DEPLOY / "Dockerfile").read_text()
_COMPOSE = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())
_UNIT = (_DEPLOY / "systemd" / "tollkeeper.service").read_text()
_CONSOLE_UNIT = (_DEPLOY / "systemd" / "tollkeeper-console.service").read_text()
_NGINX = (_DEPLOY / "nginx" / "nginx.conf").read_text()
_CADDY = (_DEPLOY / "caddy" / "Caddyfile").read_text()
_HAPROXY = (_DEPLOY / "haproxy" / "haproxy.cfg").read_text()
_MANIFESTS = [
    document
    for path in sorted((_DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
# The longest time that a worker and its supervisor need after the grace period
# (entry/shutdown.py).
_AFTER_GRACE_S = 35
_DEFAULTS = Settings()
_CONSOLE = "tollkeeper-console"
_GATEWAY_URL = "https://gateway.example.com"


def _manifest(kind: str, name: str = "") -> Any:
    names = {name} if name else {"tollkeeper", "tollkeeper-migrate"}
    (found,) = [
        document
        for document in _MANIFESTS
        if document["kind"] == kind and document["metadata"]["name"] in names
    ]
    return found


def _container(kind: str, name: str = "") -> Any:
    (container,) = _manifest(kind, name)["spec"]["template"]["spec"]["containers"]
    return container


def _unit_values(name: str, unit: str = _UNIT) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)


def _docker_environment() -> dict[str, str]:
    (block,) = re.findall(r"^ENV (.*?)(?=^[A-Z]+ )", _DOCKERFILE, re.MULTILINE | re.DOTALL)
    return dict(pair.split("=", 1) for pair in block.replace("\\\n", " ").split())


def _kubernetes_environment(name: str = "") -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in _container("Deployment", name)["env"]}


def _unit_environment(unit: str = _UNIT) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in _unit_values("Environment", unit))


_ENVIRONMENTS = {
    "docker": _docker_environment(),
    "compose": _COMPOSE["services"]["tollkeeper"]["environment"],
    "kubernetes": _kubernetes_environment(),
    "systemd": _unit_environment(),
    "compose console": _COMPOSE["services"]["console"]["environment"],
    "kubernetes console": _kubernetes_environment(_CONSOLE),
    "systemd console": _unit_environment(_CONSOLE_UNIT),
}


def _settings_files() -> dict[str, str]:
    return {
        "compose": (_DEPLOY / "tollkeeper.toml").read_text(),
        "kubernetes": _manifest("ConfigMap")["data"]["tollkeeper.toml"],
    }


# This value is valid as a password and as a digest.
_FILLED_IN = "0" * 64


def _is_setting(variable: str) -> bool:
    section, _, name = variable.removeprefix("TOLLKEEPER_").lower().partition("__")
    field = Settings.model_fields.get(section)
    return field is not None and name in getattr(field.annotation, "model_fields", {})


@each("place", _ENVIRONMENTS)
def test_every_variable_is_a_setting(place: str) -> None:
    ours = {name for name in _ENVIRONMENTS[place] if name.startswith("TOLLKEEPER_")}
    assert ours
    assert {name for name in ours - {"TOLLKEEPER_CONFIG"} if not _is_setting(name)} == set()


@pytest.mark.parametrize(
    "place", ["compose", "kubernetes", "compose console", "kubernetes console"]
)
def test_the_settings_load_with_that_environment(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tollkeeper.toml"
    file.write_text(_settings_files()[place.split(maxsplit=1)[0]])
    for name, value in {**_docker_environment(), **_ENVIRONMENTS[place]}.items():
        if name.startswith("TOLLKEEPER_") and name != "TOLLKEEPER_CONFIG":
            monkeypatch.setenv(name, re.sub(r"\$\{\w+:[?-]\}", _FILLED_IN, value))
    settings = load_settings(file)
    assert settings.server.host == "0.0.0.0"
    assert settings.database.data_dir == Path("/var/lib/tollkeeper")
    assert not settings.embedded.enabled
    assert build_catalog(settings).find(settings.models[0].id) is not None
    if place.endswith("console"):
        # The console may listen on all addresses, because a proxy with TLS is in front of it.
        assert settings.console.host == "0.0.0.0"
        require_safe_address(settings)
        assert gateway_url(settings) == _GATEWAY_URL


def test_the_gateway_has_the_address_of_the_proxies() -> None:
    host = _GATEWAY_URL.removeprefix("https://")
    assert f"server_name {host};" in _NGINX
    assert f"\n{host} {{\n" in _CADDY
    assert "/haproxy/tls/gateway.pem" in _HAPROXY
    unit = _ENVIRONMENTS["systemd console"]
    assert unit["TOLLKEEPER_CONSOLE__GATEWAY_URL"] == _GATEWAY_URL


def test_every_other_variable_is_asked_for() -> None:
    declared = tomllib.loads(_settings_files()["compose"])
    asked = {declared["secrets"]["master_key"].removeprefix("env:")}
    asked |= {PRESETS[backend["preset"]].key_env for backend in declared["backends"]}
    others = {name for name in _ENVIRONMENTS["compose"] if not name.startswith("TOLLKEEPER_")}
    assert others == asked


@each("place", ["compose", "kubernetes"])
def test_sections_in_comments_are_right(place: str, tmp_path: Path) -> None:
    """Checks the sections with the comment signs removed, and that the console can get their secrets."""
    text = re.sub(r"^# (?=\[|\w+ = )", "", _settings_files()[place], flags=re.MULTILINE)
    file = tmp_path / "tollkeeper.toml"
    file.write_text(text)
    settings = load_settings(file)
    sources = (settings.console.sign_in.client_secret, *settings.payments.webhook_secrets.live)
    names = {source.removeprefix("env:") for source in sources}
    passed_on = {
        name: value
        for name, value in _ENVIRONMENTS["compose console"].items()
        if value == f"${{{name}:-}}"
    }
    assert set(passed_on) == names
    documented = (_ROOT / "docs" / "console-in-production.md").read_text()
    assert all(f"`{name}`" in documented for name in names)


def _command_lines() -> Iterator[list[str]]:
    yield json.loads(re.findall(r"^CMD (.*)$", _DOCKERFILE, re.MULTILINE)[-1])
    yield _COMPOSE["services"]["migrate"]["command"]
    yield _container("Job")["args"]
    yield _container("Deployment")["args"]
    yield _COMPOSE["services"]["console"]["command"]
    yield _container("Deployment", _CONSOLE)["args"]


def test_every_command_parses() -> None:
    assert '\nENTRYPOINT ["tollkeeper"]\n' in _DOCKERFILE
    lines = list(_command_lines())
    assert sorted(line[0] for line in lines) == [
        *("console", "console", "migrate", "migrate", "serve", "serve")
    ]
    for arguments in lines:
        parse_arguments(arguments)
    commands = [
        line for name in ("ExecStartPre", "ExecStart", "ExecReload") for line in _unit_values(name)
    ]
    assert [line.split()[1] for line in commands] == ["migrate", "serve", "reload"]
    commands += _unit_values("ExecStart", _CONSOLE_UNIT)
    assert commands[-1].split()[1:] == ["console"]
    for line in commands:
        parse_line(line)


def test_ports_are_those_that_the_program_listens_on() -> None:
    public, operator = _DEFAULTS.server.port, _DEFAULTS.operator.port
    console = _DEFAULTS.console.port
    assert f"\nEXPOSE {public} {operator} {console}\n" in _DOCKERFILE
    assert _COMPOSE["services"]["console"]["ports"] == [f"127.0.0.1:{console}:{console}"]
    (port,) = _container("Deployment", _CONSOLE)["ports"]
    assert port == {"name": "console", "containerPort": console}
    assert f"proxy_pass http://10.0.0.11:{console};" in _NGINX
    assert f"reverse_proxy 10.0.0.11:{console}\n" in _CADDY
    assert f"http://127.0.0.1:{operator}/healthz" in _DOCKERFILE
    assert f"127.0.0.1:{public}:{public}" in _COMPOSE["services"]["tollkeeper"]["ports"]
    ports = {port["name"]: port["containerPort"] for port in _container("Deployment")["ports"]}
    assert ports == {"public": public, "operator": operator}
    (served,) = _manifest("Service")["spec"]["ports"]
    assert served["targetPort"] == "public"
    annotations = _manifest("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(operator)
    gateways = [f"10.0.0.{number}:{public}" for number in (11, 12)]
    assert re.findall(r"^ +server (\S+) max_fails=0;$", _NGINX, re.MULTILINE) == gateways
    assert f"reverse_proxy {' '.join(gateways)} {{" in _CADDY
    assert f"health_port {operator}\n" in _CADDY
    assert re.findall(r"^  server gateway-\d (\S+)$", _HAPROXY, re.MULTILINE) == gateways
    assert f"\n  server console 10.0.0.11:{console}\n" in _HAPROXY
    assert f"check port {operator} " in _HAPROXY


def test_probes_ask_the_operator_listener() -> None:
    container = _container("Deployment")
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness")}
    assert all(probe == {"path": "/healthz", "port": "operator"} for probe in probes.values())
    # A pod that cannot reach the database gets no requests, but a restart would not help it.
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "operator"}
    assert _kubernetes_environment()["TOLLKEEPER_OPERATOR__HOST"] == "0.0.0.0"


def _stop_delay_s() -> int:
    """Returns the stop delay, and checks that all settings files have the same."""
    files = _settings_files().values()
    (found,) = {tomllib.loads(text)["server"]["stop_delay_s"] for text in files}
    return int(found)


def _idle_s() -> list[int]:
    """Returns how long each proxy keeps an idle connection to a gateway."""
    found = re.findall(
        r"(?:keepalive|keepalive_timeout|pool-purge-delay) (\d+)s", _NGINX + _CADDY + _HAPROXY
    )
    assert len(found) == 3
    return [int(seconds) for seconds in found]


def test_balancers_stop_sending_before_connections_are_refused() -> None:
    """Checks that probes fail, and that proxies close idle connections, within the stop delay."""
    probe = _container("Deployment")["readinessProbe"]
    assert probe["periodSeconds"] < _stop_delay_s()
    (interval_s,), (timeout_s,) = (
        re.findall(rf"health_{name} (\d+)s", _CADDY) for name in ("interval", "timeout")
    )
    assert 2 * int(interval_s) + int(timeout_s) < _stop_delay_s()
    check, _ = re.findall(r"check port \d+ inter (\d+)s fall (\d+) rise 1", _HAPROXY)
    (timeout_s,) = re.findall(r"timeout check (\d+)s", _HAPROXY)
    assert int(check[0]) * int(check[1]) + int(timeout_s) < _stop_delay_s()
    assert all(seconds < _stop_delay_s() for seconds in _idle_s())


def test_a_call_is_never_sent_twice() -> None:
    assert "proxy_next_upstream error timeout;" in _NGINX
    assert not re.search(r"^\s*proxy_next_upstream .*non_idempotent", _NGINX, re.MULTILINE)
    assert not re.search(r"^\s*lb_retry_match", _CADDY, re.MULTILINE)
    assert re.findall(r"^\s*retry-on (.*)", _HAPROXY, re.MULTILINE) == ["conn-failure"]


def test_nothing_is_killed_before_it_has_settled_its_calls() -> None:
    needed_s = _stop_delay_s() + _DEFAULTS.server.grace_s + _AFTER_GRACE_S
    pod = _manifest("Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > needed_s
    assert int(_COMPOSE["services"]["tollkeeper"]["stop_grace_period"].removesuffix("s")) > needed_s
    (stop_s,) = _unit_values("TimeoutStopSec")
    assert int(stop_s) > needed_s


def test_the_console_is_called_by_its_own_name() -> None:
    """Checks the console's host name, and that only the proxy in front of it can set a client's address."""
    name = "console.example.com"
    compose = _ENVIRONMENTS["compose console"]
    assert json.loads(compose["TOLLKEEPER_CONSOLE__ALLOWED_HOSTS"]) == [name]
    (network,) = _COMPOSE["networks"]["default"]["ipam"]["config"]
    assert json.loads(compose["TOLLKEEPER_CONSOLE__TRUSTED_PROXIES"]) == [network["gateway"]]
    declared = tomllib.loads(_settings_files()["kubernetes"])["console"]
    assert declared["allowed_hosts"] == [name]
    container = _container("Deployment", _CONSOLE)
    for kind in ("readiness", "liveness"):
        probe = container[f"{kind}Probe"]["httpGet"]
        assert (probe["path"], probe["port"]) == ("/healthz", "console")
        assert probe["httpHeaders"] == [{"name": "Host", "value": name}]
    (_, nginx), (_, caddy) = _NGINX.split(f"server_name {name};"), _CADDY.split(f"\n{name} {{")
    for header in ("Host $host;", "X-Forwarded-For $remote_addr;", "X-Forwarded-Proto $scheme;"):
        assert f"proxy_set_header {header}" in nginx
    assert "deny all;" in nginx
    assert "respond 403" in caddy
    # The proxies let any client reach this path, because the console verifies the signature.
    (webhook,) = [route.path for route in CONSOLE_ROUTES if route.path.startswith("/webhooks/")]
    (public,) = re.findall(r"^ +location = (\S+) \{", nginx, re.MULTILINE)
    assert public == webhook
    assert f"handle {webhook} {{" in caddy
    haproxy = _HAPROXY.partition("backend console")[2]
    assert f"acl webhook path {webhook}\n" in haproxy
    for header in ("X-Forwarded-For %[src]", "X-Forwarded-Proto https"):
        assert f"http-request set-header {header}\n" in haproxy


def test_the_console_is_as_confined_as_the_gateway() -> None:
    hardening = _UNIT.partition("StateDirectory=")[2]
    assert hardening
    assert _CONSOLE_UNIT.partition("StateDirectory=")[2] == hardening
    ours, gateways = (_container("Deployment", name) for name in (_CONSOLE, ""))
    for part in ("securityContext", "envFrom", "volumeMounts", "image"):
        assert ours[part] == gateways[part]


def test_only_named_connections_are_allowed() -> None:
    policies = {
        document["metadata"]["name"]: document["spec"]
        for document in _MANIFESTS
        if document["kind"] == "NetworkPolicy"
    }
    pods = {
        name: _manifest(kind, name)["spec"]["template"]["metadata"]["labels"]
        for kind, name in (
            ("Deployment", "tollkeeper"),
            ("Deployment", _CONSOLE),
            ("Job", "tollkeeper-migrate"),
        )
    }
    for name in ("tollkeeper", _CONSOLE):
        selected = policies[name]["podSelector"]["matchLabels"]
        assert selected.items() <= pods[name].items()
        ports = [port["port"] for rule in policies[name]["ingress"] for port in rule["ports"]]
        assert ports == [port["name"] for port in _container("Deployment", name)["ports"]]
        assert all(rule["from"] for rule in policies[name]["ingress"])
    # The console's playground calls the gateway, directly or through the ingress.
    direct, through_ingress = policies[_CONSOLE]["egress"]
    (callee,) = direct["to"]
    assert callee["podSelector"] == policies["tollkeeper"]["podSelector"]
    assert direct["ports"] == [{"port": _DEFAULTS.server.port, "protocol": "TCP"}]
    ingress, caller = policies["tollkeeper"]["ingress"][0]["from"]
    assert caller["podSelector"] == policies[_CONSOLE]["podSelector"]
    assert through_ingress == {"to": [ingress]}
    egress = policies["tollkeeper-egress"]
    shared = egress["podSelector"]["matchLabels"]
    assert all(shared.items() <= labels.items() for labels in pods.values())
    assert [port["port"] for rule in egress["egress"] for port in rule["ports"]] == [
        *(53, 53, 5432, 443)
    ]


def test_pods_are_spread_over_machines_and_zones() -> None:
    template = _manifest("Deployment")["spec"]["template"]
    spread = template["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    for one in spread:
        selected = one["labelSelector"]["matchLabels"]
        assert selected.items() <= template["metadata"]["labels"].items()


def test_the_ledger_is_verified_before_its_alert_fires() -> None:
    rules = yaml.safe_load((_DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0][
        "rules"
    ]
    (rule,) = [rule for rule in rules if rule["alert"] == "TollkeeperLedgerNotVerified"]
    allowed_s = int(rule["expr"].rpartition("> ")[2])
    assert allowed_s >= 2 * EVERY_HOURS * 3600


def test_nothing_runs_as_root_or_writes_where_it_should_not() -> None:
    users = re.findall(r"^USER (\d+)$", _DOCKERFILE, re.MULTILINE)
    assert users == ["10001"]
    for kind in ("Job", "Deployment"):
        pod = _manifest(kind)["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == int(users[0])
        assert _container(kind)["securityContext"]["readOnlyRootFilesystem"]
    assert _COMPOSE["services"]["tollkeeper"]["read_only"]
    assert _unit_values("ProtectSystem") == ["strict"]


def test_manifests_fit_each_other() -> None:
    labels = _manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert _manifest(kind)["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert _manifest("Service")["spec"]["selector"].items() <= labels.items()
    target = _manifest("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (
        "Deployment",
        _manifest("Deployment")["metadata"]["name"],
    )
    assert {_container(kind)["image"] for kind in ("Job", "Deployment")} == {
        f"tollkeeper:{tollkeeper.__version__}"
    }


def test_no_secret_is_written_down() -> None:
    assert [document["kind"] for document in _MANIFESTS if document["kind"] == "Secret"] == []
    for kind in ("Job", "Deployment"):
        assert _container(kind)["envFrom"] == [{"secretRef": {"name": "tollkeeper"}}]
    assert _unit_values("EnvironmentFile")


_IMAGE = re.compile(r"[a-z.]+(?:/[a-z]+){2}:v?\d+\.\d+(?:\.\d+)?(?:-[a-z-]+)?")
_PINNED = re.compile(r"\$\{(\w+)_IMAGE:\?\}@\$\{\1_DIGEST:\?run sh deploy/pin-images.sh\}")


def _images() -> dict[str, str]:
    lines = (_DEPLOY / "images.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_images_are_named_in_one_place() -> None:
    """Checks that each image has a registry and a version, and that an empty digest is refused."""
    values = _images()
    images = {name.removesuffix("_IMAGE") for name in values if name.endswith("_IMAGE")}
    assert set(values) == {f"{name}_{part}" for name in images for part in ("IMAGE", "DIGEST")}
    for name in images:
        assert _IMAGE.fullmatch(values[f"{name}_IMAGE"])
        assert re.fullmatch("(sha256:[0-9a-f]{64})?", values[f"{name}_DIGEST"])
    bases = re.findall(r"^FROM (\S+)", _DOCKERFILE, re.MULTILINE)
    assert bases == ["${PYTHON_IMAGE}"] * 2
    base = _COMPOSE["services"]["tollkeeper"]["build"]["args"]["PYTHON_IMAGE"]
    foreign = {service["image"] for service in _COMPOSE["services"].values()} - {"tollkeeper"}
    pinned = [_PINNED.fullmatch(image) for image in (base, *sorted(foreign))]
    assert {found[1] for found in pinned if found} == images
    assert None not in pinned


# A replacement for docker, which prints the SHA-256 of an image's name as its digest.
_DOCKER = """#!/bin/sh
[ "$1 $2 $3" = "buildx imagetools inspect" ] || exit 2
echo "sha256:$(printf %s "$4" | sha256sum | cut -d' ' -f1)"
"""


def test_images_are_pinned_by_their_digests(tmp_path: Path) -> None:
    for name in ("images.env", "pin-images.sh"):
        shutil.copy(_DEPLOY / name, tmp_path)
    docker = tmp_path / "docker"
    docker.write_text(_DOCKER)
    docker.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def pin(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = ["sh", str(tmp_path / "pin-images.sh"), *arguments]
        return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)

    file = tmp_path / "images.env"
    tagged = re.sub(r"=sha256:\w+$", "=", file.read_text(), flags=re.MULTILINE)
    file.write_text(tagged)
    assert pin("--check").returncode == 1
    for _ in range(2):  # The second run also asks by tag, and not by digest.
        assert pin().returncode == 0
        pinned = file.read_text()
        for name, image in re.findall(r"^([A-Z]+)_IMAGE=(\S+)$", tagged, re.MULTILINE):
            digest = hashlib.sha256(image.encode()).hexdigest()
            assert f"={image}\n{name}_DIGEST=sha256:{digest}\n" in pinned
        assert re.sub(r"=sha256:\w+", "=", pinned) == tagged
    assert pin("--check").returncode == 0
    docker.write_text("#!/bin/sh\necho nothing\n")
    assert pin().returncode == 1
    assert file.read_text() == pinned


def test_proxies_pass_streams_on_as_they_come() -> None:
    deadline_s = _DEFAULTS.limits.inference_deadline_s
    for directive in ("proxy_buffering off;", "proxy_request_buffering off;", "gzip off;"):
        assert directive in _NGINX
    gateway_s, console_s = re.findall(r"proxy_read_timeout (\d+)s;", _NGINX)
    assert int(gateway_s) > deadline_s
    # The longest deadlines of the console: the file of a month, the doctor, and the trial of a backend.
    longest_s = max(months._EXPORT_DEADLINE_S, checks._DOCTOR_S, 4 * deadline_s)
    assert int(console_s) > longest_s
    assert f"can take {months._EXPORT_DEADLINE_S:.0f} s" in _CADDY
    assert "flush_interval -1" in _CADDY
    (header_s,) = re.findall(r"response_header_timeout (\d+)s", _CADDY)
    assert int(header_s) > deadline_s
    gateway_s, console_s = re.findall(r"timeout server (\d+)s", _HAPROXY)
    assert int(gateway_s) > deadline_s
    assert int(console_s) > longest_s
    assert "option http-no-delay" in _HAPROXY


def test_a_pod_has_the_memory_that_its_limits_allow() -> None:
    """Computes the needed memory as docs/running.md does."""
    limits, server = _DEFAULTS.limits, _DEFAULTS.server
    assert server.workers == 1
    allowed = _container("Deployment")["resources"]["limits"]["memory"]
    mebibytes = int(allowed.removesuffix("Mi"))
    requests = http_conventions(_DEFAULTS).requests_bytes_max + 4 * limits.body_bytes
    connections = CONNECTIONS_MAX * 36 * 1024
    assert mebibytes * 2**20 > 2 * 80 * 10**6 + requests + connections


def test_proxies_take_what_the_gateway_takes() -> None:
    mebibytes = _DEFAULTS.limits.body_bytes // 2**20
    assert f"client_max_body_size {mebibytes}m;" in _NGINX
    assert f"max_size {mebibytes}MiB" in _CADDY
    assert f"content-length) gt {_DEFAULTS.limits.body_bytes} }}" in _HAPROXY
    assert all(seconds < KEEP_ALIVE_S for seconds in _idle_s())


def test_the_lock_of_the_image_is_a_part_of_the_lock() -> None:
    pin = re.compile(r"^(\S+==\S+)", re.MULTILINE)
    locked = set(pin.findall((_ROOT / "requirements.lock").read_text()))
    image = set(pin.findall((_DEPLOY / "requirements.lock").read_text()))
    assert {pin.partition("==")[0] for pin in image} >= {"psycopg", "uvloop", "starlette"}
    assert image <= locked


def test_the_image_is_compiled() -> None:
    """The image's user cannot store compiled files, so Python would compile modules at every start."""
    installs = re.findall(r"uv pip install [^\n]*", _DOCKERFILE)
    assert len(installs) == 2
    assert all("--compile-bytecode" in install for install in installs)


def test_the_context_has_what_the_image_is_made_of() -> None:
    ignored = (_DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    kept = {line.removeprefix("!") for line in ignored[1:]}
    assert {name for name in kept if not (_ROOT / name).exists()} == set()
    named = set(re.findall(r"(?<=[ /])[\w-]*(?:deploy/)?requirements[\w-]*\.lock", _DOCKERFILE))
    assert {"deploy/requirements.lock", "requirements.lock", "requirements-uv.lock"} <= named & kept
    # The build of the package reads these files.
    assert {"src", "pyproject.toml", "README.md"} <= kept
