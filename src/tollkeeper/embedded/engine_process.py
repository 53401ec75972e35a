"""The program in the engine's own process: opens llama.cpp's server on loopback and ends with its
parent. Knows nothing of the gateway, so that it starts quickly and holds none of its secrets.

The parent keeps the other end of standard input. Its one line carries what must not be on a
command line; its end is the order to end. Readiness is one JSON line on standard output.
"""

import argparse
import ctypes
import http.client
import json
import os
import resource
import select
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import xllamacpp

from tollkeeper.embedded.engine_address import ENGINE_HOST

# A call is stopped between two batches, and the other streams wait for one: at 64 tokens the
# prompt is read as fast as at 2,048, and both waits stay below a second on one slow core.
_BATCH_TOKENS = 64
# Prefixes of calls that lost their slot. The engine's own default is eight gigabytes.
_PREFIX_CACHE_MIB = 256
_ERRORS_ONLY = 1
_PARENT_POLL_S = 1.0
_ANSWER_TIMEOUT_S = 60.0
# The engine's numbers for kinds of vocabularies.
_VOCABULARIES = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}
_REPEATED_PROMPT = "One, two, three, four, five"
_PR_SET_PDEATHSIG = 1
_CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
_EXIT_REFUSED = 3


@dataclass(frozen=True, slots=True)
class Handshake:
    """What the parent writes before anything else."""

    api_key: str
    parent_pid: int


def main() -> NoReturn:
    options = _parse(sys.argv[1:])
    first = json.loads(sys.stdin.buffer.readline())
    handshake = Handshake(api_key=first["api_key"], parent_pid=first["parent_pid"])
    _end_with_parent(handshake.parent_pid)
    # A dump of this process would hold the callers' prompts.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    report = _take_standard_output()
    try:
        server = xllamacpp.Server(_parameters(options, handshake.api_key))
    except RuntimeError as exc:
        sys.stderr.write(f"{exc}\n")
        sys.stderr.flush()
        os._exit(_EXIT_REFUSED)
    origin = server.listening_address
    ready = EngineQuestions(origin, handshake.api_key).answers()
    os.write(report, json.dumps(ready).encode() + b"\n")
    # The server's own end waits for open calls and was seen to wait for ever: this process is
    # ended by a signal or by the watching thread, never by running out.
    while True:
        signal.pause()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tollkeeper.embedded.engine_process")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--model-name", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--context-length", type=int, required=True, help="of each slot")
    parser.add_argument("--threads", type=int, required=True, help="0: all cores but one")
    return parser.parse_args(arguments)


def _parameters(options: argparse.Namespace, api_key: str) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.model_path
    parameters.model_alias = {options.model_name}
    parameters.offline = True
    # The context is split evenly; fitting it to free memory would make the catalogue lie.
    parameters.n_parallel = options.parallel
    parameters.n_ctx = options.context_length * options.parallel
    parameters.fit_params = False
    parameters.n_batch = parameters.n_ubatch = max(_BATCH_TOKENS, options.parallel)
    threads = options.threads or default_threads()
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.cache_prompt = True
    parameters.cache_ram_mib = _PREFIX_CACHE_MIB
    parameters.use_jinja = True
    # A last message of the assistant is history, as everywhere else, not text to be continued.
    parameters.prefill_assistant = False

    parameters.hostnames = [ENGINE_HOST]
    parameters.port = options.port
    # The parent holds the port for as long as it lives, in a socket that does not listen.
    parameters.reuse_port = True
    parameters.api_keys = [api_key]
    parameters.cors_origins = parameters.cors_headers = parameters.cors_methods = ""
    parameters.cors_credentials = False
    parameters.ui = False
    # Only this path is answered by the loop that computes, and so tells whether it still runs.
    parameters.endpoint_slots = True
    parameters.verbosity = _ERRORS_ONLY
    return parameters


def default_threads() -> int:
    """All cores but one: with a busy process beside it, an engine on every core falls to a tenth."""
    return max(1, _cores() - 1)


def _cores() -> int:
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _CPU_QUOTA_FILE.read_text().split()
        granted = int(quota) // int(period)
    except (OSError, ValueError):  # no control group, or a quota of "max"
        return cores
    return min(cores, max(1, granted))


def _end_with_parent(parent_pid: int) -> None:
    """On every end of the parent, also one that it cannot tell of.

    The kernel's signal works while the model loads, when no other thread of Python runs, but it
    follows the parent's thread; the pipe follows the process, unless a child of it inherited the
    other end; the parent's id is right in that case too.
    """
    # Where the kernel refuses, the thread below remains.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the signal was ordered
        os._exit(0)
    threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()


def _watch_parent(parent_pid: int) -> None:
    standard_input = sys.stdin.fileno()
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([standard_input], [], [], _PARENT_POLL_S)
        if readable and not os.read(standard_input, 4096):
            break
    os._exit(0)


def _take_standard_output() -> int:
    """A private copy for the report; whatever the library prints goes to standard error."""
    report = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return report


class EngineQuestions:
    """What the running engine says of itself: the settings only asked for it."""

    def __init__(self, origin: str, api_key: str) -> None:
        self._port = int(origin.rsplit(":", 1)[1])
        self._api_key = api_key

    def answers(self) -> dict[str, Any]:
        props = self._ask("/props")
        meta = self._ask("/v1/models")["data"][0]["meta"]
        return {
            # Of a slot: never more than the model was trained for.
            "context_length": int(props["default_generation_settings"]["n_ctx"]),
            "slots": int(props["total_slots"]),
            "tokenizer": _VOCABULARIES.get(meta["vocab_type"], "unknown"),
            "vocabulary": int(meta["n_vocab"]),
            "prefix_cache": self._has_prefix_cache(),
            "prefix_cache_mib": _PREFIX_CACHE_MIB,
        }

    def _has_prefix_cache(self) -> bool:
        """No path tells it, but the second of two equal calls does. They also warm the engine up."""
        body = {"prompt": _REPEATED_PROMPT, "n_predict": 1}
        found = [self._ask("/completion", body).get("timings", {}) for _ in range(2)]
        return int(found[1].get("cache_n", 0)) > 0

    def _ask(self, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(ENGINE_HOST, self._port, timeout=_ANSWER_TIMEOUT_S)
        method = "GET" if body is None else "POST"
        sent = None if body is None else json.dumps(body)
        try:
            headers = {"Authorization": f"Bearer {self._api_key}"}
            connection.request(method, path, sent, headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


if __name__ == "__main__":
    main()
