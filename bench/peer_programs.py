"""Installs each peer in a separate environment, and returns the command that starts it."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.journeys.clients.debian import debian_program
from tests.journeys.clients.environments import node_environment, python_environment

from bench.figures import CHAT_PATH
from bench.ports import free_port
from bench.upstream import PACED

_HERE = Path(__file__).parent
_LOCKS = _HERE / "locks"
PORTKEY_PROJECT = _HERE / "portkey"
PRISMA_PROJECT = _HERE / "billing" / "gateways" / "prisma"


@dataclass(frozen=True, slots=True)
class Program:
    """The command and the environment of an installed peer, and the form of requests to it."""

    command: list[str | Path]
    environment: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    share: float = 1.0
    # The name of the model and the path of chat completions at this peer.
    model: str = PACED
    path: str = CHAT_PATH
    # A peer that chooses its own port writes it into this file.
    port_file: Path | None = None


def _sglang(port: int, upstream: int, _folder: Path) -> Program:
    """Returns the SGLang Model Gateway, written in Rust. It only routes."""
    python = python_environment("sglang", _LOCKS)
    return Program([python, "-m", "sglang_router.launch_router", *_routing(port, upstream)])


def _smg(port: int, upstream: int, _folder: Path) -> Program:
    """Returns the Shepherd Model Gateway, the successor of the SGLang gateway. It only routes.

    It asks the upstream for its models. The upstream lists none, so the model's name is `unknown`.
    """
    python = python_environment("smg", _LOCKS)
    command: list[str | Path] = [python, "-m", "smg.launch_router", *_routing(port, upstream)]
    return Program(command, model="unknown")


def _routing(port: int, upstream: int) -> list[str]:
    """Returns the options that the SGLang gateway and smg have in common."""
    return [
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
        *("--worker-urls", f"http://127.0.0.1:{upstream}"),
        *("--disable-health-check", "--log-level", "error"),
    ]


_LITELLM_CONFIG = """
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: http://127.0.0.1:{upstream}/v1
      api_key: unused
litellm_settings:
  set_verbose: false
  request_timeout: 600
"""


def _litellm(port: int, upstream: int, folder: Path) -> Program:
    """Returns the LiteLLM proxy without a database, with the production settings of its documentation."""
    program = python_environment("litellm", _LOCKS).with_name("litellm")
    config = folder / "litellm.yaml"
    config.write_text(_LITELLM_CONFIG.format(model=PACED, upstream=upstream))
    # LiteLLM does not start without a key of this form.
    key = f"sk-{secrets.token_hex(24)}"
    return Program(
        [
            *(program, "--config", config, "--num_workers", "1"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ],
        {
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_MASTER_KEY": key,
            # Use the price list of the package. Otherwise LiteLLM would download the newest list.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        {"authorization": f"Bearer {key}"},
        share=0.025,
    )


def _portkey(port: int, upstream: int, _folder: Path) -> Program:
    """Returns the Portkey gateway, which runs on Node. The headers of each request name the upstream."""
    node = node_environment(PORTKEY_PROJECT, "portkey")
    gateway = node.project / "node_modules" / "@portkey-ai" / "gateway" / "build"
    return Program(
        [
            *(node.program, "--require", PORTKEY_PROJECT / "loopback.cjs"),
            *(gateway / "start-server.js", f"--port={port}", "--headless"),
        ],
        {"NODE_ENV": "production"},
        {
            "authorization": "Bearer unused",
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": f"http://127.0.0.1:{upstream}/v1",
        },
        share=0.25,
    )


_TENSORZERO_CONFIG = """
[gateway]
observability.enabled = false
[models.{model}]
routing = ["upstream"]
[models.{model}.providers.upstream]
type = "openai"
model_name = "{model}"
api_base = "http://127.0.0.1:{upstream}/v1/"
api_key_location = "none"
"""


def _tensorzero(_port: int, upstream: int, folder: Path) -> Program:
    """Returns the TensorZero gateway, written in Rust, without a database. It only routes.

    Its Python package has the gateway as a library. Our script starts the gateway and writes its port.
    """
    config = folder / "tensorzero.toml"
    config.write_text(_TENSORZERO_CONFIG.format(model=PACED, upstream=upstream))
    port_file = folder / "port"
    return Program(
        [
            *(python_environment("tensorzero", _LOCKS), _HERE / "tensorzero_server.py"),
            *(config, port_file),
        ],
        model=f"tensorzero::model_name::{PACED}",
        path="/openai/v1/chat/completions",
        port_file=port_file,
    )


_NGINX_CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream model {{ server 127.0.0.1:{upstream}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://model;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def _nginx(port: int, upstream: int, folder: Path) -> Program:
    """Returns nginx with `proxy_pass`: about the lowest cost of a process between client and model."""
    config = folder / "nginx.conf"
    config.write_text(_NGINX_CONFIG.format(folder=folder, port=port, upstream=upstream))
    nginx = debian_program("nginx", "usr/sbin/nginx")
    return Program([nginx.program, "-p", folder, "-c", config, "-e", "stderr"], nginx.environment)


_ENVOY_CONFIG = """
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": {filters}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          route_config:
            virtual_hosts:
            - name: model
              domains: ["*"]
              routes: [ {{ match: {{ prefix: "/" }}, route: {{ cluster: model, timeout: 0s }} }} ]
          http_filters:
          - name: router
            typed_config:
              "@type": {filters}.http.router.v3.Router
  clusters:
  - name: model
    type: STATIC
    load_assignment:
      cluster_name: model
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {{ socket_address: {{ address: 127.0.0.1, port_value: {upstream} }} }}
"""


def _envoy(port: int, upstream: int, folder: Path) -> Program:
    """Returns Envoy with one route. It only forwards requests."""
    config = folder / "envoy.yaml"
    filters = "type.googleapis.com/envoy.extensions.filters"
    config.write_text(_ENVOY_CONFIG.format(port=port, upstream=upstream, filters=filters))
    program = python_environment("envoy", _LOCKS).with_name("envoy")
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
    return Program([program, "--config-path", config, *options])


PEERS: dict[str, Callable[[int, int, Path], Program]] = {
    "nginx": _nginx,
    "envoy": _envoy,
    "sglang": _sglang,
    "smg": _smg,
    "tensorzero": _tensorzero,
    "portkey": _portkey,
    "litellm": _litellm,
}
