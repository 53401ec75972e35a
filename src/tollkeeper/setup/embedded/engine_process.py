"""Runs the embedded engine, llama.cpp's server, on loopback. It imports almost nothing of the gateway, so it
starts fast and has no secrets of it in memory, and it ends with its parent, the supervisor.

The parent writes a line of JSON with the API key, which mustn't be on a command line, to standard input, and
keeps the pipe open. When the engine is ready, a line of JSON goes to standard output.
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

from tollkeeper.setup.embedded.engine_address import ENGINE_HOST

# During a batch it can't stop a call, and other streams wait. 64 tokens take under a second on one slow core,
# and prompts are as fast as with 2,048.
_BATCH_TOKENS = 64
# For prompts whose slot another call got. The engine's default is 8 GB.
_PREFIX_CACHE_MIB = 256
_ERRORS_ONLY = 1
_PARENT_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1
_ANSWER_TIMEOUT_S = 60.0
# By the engine's numbers.
_TOKENIZERS = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}
_REPEATED_PROMPT = "One, two, three, four, five"
_CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
# If the engine refuses to start, for example because of its model file.
_EXIT_REFUSED = 3


@dataclass(frozen=True, slots=True)
class Handshake:
    api_key: str
    parent_pid: int


def main() -> NoReturn:
    options = _parse(sys.argv[1:])
    first_line = json.loads(sys.stdin.buffer.readline())
    handshake = Handshake(api_key=first_line["api_key"], parent_pid=first_line["parent_pid"])
    _end_with_parent(handshake.parent_pid)
    _forbid_core_dumps()
    report_descriptor = _redirected_standard_output()
    try:
        server = xllamacpp.Server(_parameters(options, handshake.api_key))
    except RuntimeError as exc:
        sys.stderr.write(f"{exc}\n")
        sys.stderr.flush()
        os._exit(_EXIT_REFUSED)
    origin = server.listening_address
    report = EngineProperties(origin, handshake.api_key).as_report()
    os.write(report_descriptor, json.dumps(report).encode() + b"\n")
    # The server's own stop waits for open calls, and was seen to hang. So this runs until a signal or the
    # parent watch ends it.
    while True:
        signal.pause()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tollkeeper.setup.embedded.engine_process")
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
    # The engine divides `n_ctx` between the slots. It mustn't shrink it when memory is low (`fit_params`):
    # the catalogue declares the size.
    parameters.n_parallel = options.parallel
    parameters.n_ctx = options.context_length * options.parallel
    parameters.fit_params = False
    parameters.n_batch = parameters.n_ubatch = max(_BATCH_TOKENS, options.parallel)
    threads = options.threads or default_threads()
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.cache_prompt = True
    parameters.cache_ram_mib = _PREFIX_CACHE_MIB
    parameters.use_jinja = True
    # After an assistant's message the engine writes a new answer, like other backends, instead of going on
    # with it.
    parameters.prefill_assistant = False

    parameters.hostnames = [ENGINE_HOST]
    parameters.port = options.port
    # The parent's socket reserves the port without listening.
    parameters.reuse_port = True
    parameters.api_keys = [api_key]
    parameters.cors_origins = parameters.cors_headers = parameters.cors_methods = ""
    parameters.cors_credentials = False
    parameters.ui = False
    # The supervisor asks `/slots` whether the engine hangs.
    parameters.endpoint_slots = True
    parameters.verbosity = _ERRORS_ONLY
    return parameters


def default_threads() -> int:
    """An engine on every core slows down to a tenth if another process is busy."""
    return max(1, _cores() - 1)


def _cores() -> int:
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _CPU_QUOTA_FILE.read_text().split()
        quota_cores = int(quota) // int(period)
    except (OSError, ValueError):  # no control group, or no quota ("max")
        return cores
    return min(cores, max(1, quota_cores))


class EngineProperties:
    """They may differ from the settings."""

    def __init__(self, origin: str, api_key: str) -> None:
        self._port = int(origin.rsplit(":", 1)[1])
        self._api_key = api_key

    def as_report(self) -> dict[str, Any]:
        props = self._ask("/props")
        meta = self._ask("/v1/models")["data"][0]["meta"]
        return {
            # Per slot, at most what the model was trained for.
            "context_length": int(props["default_generation_settings"]["n_ctx"]),
            "slots": int(props["total_slots"]),
            "tokenizer": _TOKENIZERS.get(meta["vocab_type"], "unknown"),
            "vocabulary": int(meta["n_vocab"]),
            "prefix_cache": self._has_prefix_cache(),
            "prefix_cache_mib": _PREFIX_CACHE_MIB,
        }

    def _has_prefix_cache(self) -> bool:
        """Tested by sending a prompt twice, because nothing reports it. This also warms the engine up."""
        body = {"prompt": _REPEATED_PROMPT, "n_predict": 1}
        timings = [self._ask("/completion", body).get("timings", {}) for _ in range(2)]
        return int(timings[1].get("cache_n", 0)) > 0

    def _ask(self, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(ENGINE_HOST, self._port, timeout=_ANSWER_TIMEOUT_S)
        method = "GET" if body is None else "POST"
        payload = None if body is None else json.dumps(body)
        try:
            headers = {"Authorization": f"Bearer {self._api_key}"}
            connection.request(method, path, payload, headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def _end_with_parent(parent_pid: int) -> None:
    """Ends this process with the gateway that started it. Three ways, because none always works:

    1. The kernel sends a signal, even while a library's loading blocks all Python threads. But also if only
    the parent's thread that started this process ends, and it may refuse.

    2. Standard input closes, unless another child has inherited the other end.

    3. `os.getppid()` changes. A thread polls it.
    """
    # If the kernel refuses, the thread below still watches.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the signal was requested
        os._exit(0)
    threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()


def _forbid_core_dumps() -> None:
    """They'd have prompts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _redirected_standard_output() -> int:
    """A copy for the report to the parent. Libraries' output goes to standard error, so it doesn't mix with
    that."""
    report = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return report


def _watch_parent(parent_pid: int) -> None:
    standard_input = sys.stdin.fileno()
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([standard_input], [], [], _PARENT_POLL_S)
        if readable and not os.read(standard_input, 4096):
            break
    os._exit(0)


if __name__ == "__main__":
    main()
