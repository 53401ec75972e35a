"""Tests that a run continues without an unavailable peer and states why, and that idle peers are paused."""

import os
import signal
import sys
from pathlib import Path

import pytest
from bench.peer_programs import Program
from bench.peers import running_peers

from bench import peers
from tests.journeys.clients.environments import NotInstalled


def _absent(_port: int, _upstream: int, _folder: Path) -> Program:
    raise NotInstalled("no such host")


def _mute(_port: int, _upstream: int, _folder: Path) -> Program:
    return Program([sys.executable, "-c", "raise SystemExit('no licence')"])


def test_says_why_a_peer_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEERS", {"absent": _absent, "mute": _mute})
    with running_peers(["absent", "mute"], 1, tmp_path) as found:
        assert found.targets == []
        assert found.missing == {
            "absent": "could not be installed: no such host",
            "mute": "could not be started: no licence",
        }


_SERVER = """
import http.server, sys

class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "11")
        self.end_headers()
        self.wfile.write(b'{"choices"}')

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_peer_sleeps_unless_it_is_measured_and_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served(port: int, _upstream: int, _folder: Path) -> Program:
        return Program([sys.executable, "-c", _SERVER, str(port)])

    monkeypatch.setattr(peers, "PEERS", {"served": served})
    with running_peers(["served"], 1, tmp_path) as found:
        (target,) = found.targets
        assert os.waitid(os.P_PID, target.pid, os.WSTOPPED) is not None
        with peers.awake(target):
            assert _state(target.pid) != "T"
        assert os.waitid(os.P_PID, target.pid, os.WSTOPPED) is not None
    with pytest.raises(ProcessLookupError):
        os.kill(target.pid, signal.SIGCONT)
