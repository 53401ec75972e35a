"""What the HTTP server relies on inside uvicorn, which promises none of it to anybody.

A failure here after an upgrade names what has changed. Then `hosting/http_protocol.py` and
`hosting/http_server.py` are to be read beside the new version before its bound in `pyproject.toml`
is moved.
"""

import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from tollkeeper.hosting.http_protocol import HardenedProtocol

_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
# Methods that are overridden, called or both, with the names of their arguments.
_METHODS: dict[type, dict[str, tuple[str, ...]]] = {
    HttpToolsProtocol: {
        "__init__": ("config", "server_state", "app_state", "_loop"),
        "connection_made": ("transport",),
        "connection_lost": ("exc",),
        "pause_writing": (),
        "resume_writing": (),
        "data_received": ("data",),
        "on_message_begin": (),
        "on_header": ("name", "value"),
        "on_headers_complete": (),
        "on_body": ("body",),
        "on_message_complete": (),
        "on_response_complete": (),
        "send_400_response": ("msg",),
        "shutdown": (),
        "_start_asgi_task": ("cycle", "app"),
    },
    FlowControl: {"resume_reading": ()},
    RequestResponseCycle: {"send": ("message",), "receive": ()},
}
_STATE = {"tasks": set, "connections": set, "default_headers": list}
_CONNECTION = ("loop", "transport", "flow", "pipeline", "cycle")
# These are there from the beginning of a request on.
_REQUEST = ("headers", "url", "scope")
_CYCLE = ("response_complete", "disconnected", "message_event", "scope")
_CONFIG = (
    *("app", "http", "ws", "lifespan", "access_log", "log_config", "proxy_headers"),
    "timeout_keep_alive",
)


def _changed(what: str) -> str:
    return f"uvicorn {version('uvicorn')}: {what}, on which tollkeeper.hosting relies"


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in _METHODS.items() for name in names]
)
def test_method(owner: type, name: str) -> None:
    shown = f"{owner.__name__}.{name}"
    assert hasattr(owner, name), _changed(f"there is no {shown}")
    _, *arguments = inspect.signature(getattr(owner, name)).parameters
    expected = _METHODS[owner][name]
    assert tuple(arguments) == expected, _changed(f"{shown} does not take {expected}")


def test_every_override_is_stated() -> None:
    inherited = {name for kind in HttpToolsProtocol.__mro__[:-1] for name in vars(kind)}
    own = {name for name, value in vars(HardenedProtocol).items() if inspect.isfunction(value)}
    assert own & inherited <= set(_METHODS[HttpToolsProtocol])


def test_no_new_method_has_a_name_of_ours() -> None:
    """One that uvicorn calls by a name that we gave to something else would be overridden."""
    inherited = {name for kind in HttpToolsProtocol.__mro__[:-1] for name in vars(kind)}
    own = {name for name in vars(HardenedProtocol) if not name.startswith("__")}
    clashes = own & inherited - set(_METHODS[HttpToolsProtocol])
    assert not clashes, _changed(f"HttpToolsProtocol has {clashes} of its own")


def test_settings_of_the_server() -> None:
    known = inspect.signature(Config.__init__).parameters
    for name in _CONFIG:
        assert name in known, _changed(f"Config takes no {name}")


def test_state_of_the_server() -> None:
    state = ServerState()
    for name, kind in _STATE.items():
        assert isinstance(getattr(state, name, None), kind), _changed(f"ServerState.{name} changed")


async def test_state_of_a_connection_and_of_a_request() -> None:
    """One request on a real socket, seen from inside."""
    seen: dict[str, Any] = {}

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        seen["state"] = scope.get("state")
        seen["raw_path"] = scope.get("raw_path")
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = Config(app, http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    made: list[HttpToolsProtocol] = []

    def connection() -> HttpToolsProtocol:
        made.append(HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop()))
        return made[0]

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 204")
    writer.close()
    server.close()
    for name in (*_CONNECTION, *_REQUEST):
        assert hasattr(made[0], name), _changed(f"HttpToolsProtocol.{name} is gone")
    assert isinstance(made[0].cycle, RequestResponseCycle), _changed("cycle is something else")
    for name in _CYCLE:
        assert hasattr(made[0].cycle, name), _changed(f"RequestResponseCycle.{name} is gone")
    assert isinstance(seen["state"], dict), _changed("the scope has no state of the request")
    assert seen["raw_path"] == b"/x", _changed("the scope has no raw path")


def test_status_lines() -> None:
    assert STATUS_LINE[431] == b"HTTP/1.1 431 Request Header Fields Too Large\r\n", _changed(
        "a status line changed"
    )


def test_the_version_is_bounded() -> None:
    declared = tomllib.loads(_PYPROJECT.read_text())["project"]["dependencies"]
    requirements = {Requirement(line).name: Requirement(line) for line in declared}
    bounds = requirements["uvicorn"].specifier
    assert {bound.operator for bound in bounds} == {">=", "<"}
    assert version("uvicorn") in bounds
