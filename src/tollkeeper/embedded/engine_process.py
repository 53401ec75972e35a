"""Runs llama.cpp's server on loopback as a separate program that ends with its parent. It imports
almost nothing of the gateway, so that it starts quickly and contains none of the gateway's secrets.

The parent writes one line to standard input, with the key that must not appear on a command line,
and keeps the pipe open: when the pipe ends, this program ends. When the engine is ready, this
program writes one line of JSON to standard output.
"""

import argparse
import http.client
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import xllamacpp

from tollkeeper.embedded.engine_address import ENGINE_HOST
from tollkeeper.embedded.parent_watch import (
    end_with_parent,
    forbid_core_dumps,
    redirected_standard_output,
)

# A call can be stopped only between two batches, and the other streams wait while a batch runs.
# With 64 tokens per batch both waits stay below a second on one slow core, and a prompt is read as
# fast as with 2,048.
_BATCH_TOKENS = 64
# Memory for prefixes of calls that lost their slot. The engine's own default is 8 GB.
_PREFIX_CACHE_MIB = 256
_ERRORS_ONLY = 1
_ANSWER_TIMEOUT_S = 60.0
# The engine's numbers for the kinds of tokenizers.
_TOKENIZERS = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}
_REPEATED_PROMPT = "One, two, three, four, five"
_CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
_EXIT_REFUSED = 3


@dataclass(frozen=True, slots=True)
class Handshake:
    """Contains the line that the parent writes to standard input."""

    api_key: str
    parent_pid: int


def main() -> NoReturn:
    options = _parse(sys.argv[1:])
    first = json.loads(sys.stdin.buffer.readline())
    handshake = Handshake(api_key=first["api_key"], parent_pid=first["parent_pid"])
    end_with_parent(handshake.parent_pid)
    forbid_core_dumps()
    report = redirected_standard_output()
    try:
        server = xllamacpp.Server(_parameters(options, handshake.api_key))
    except RuntimeError as exc:
        sys.stderr.write(f"{exc}\n")
        sys.stderr.flush()
        os._exit(_EXIT_REFUSED)
    origin = server.listening_address
    ready = EngineQuestions(origin, handshake.api_key).answers()
    os.write(report, json.dumps(ready).encode() + b"\n")
    # A regular stop of the server waits for open calls, and was observed to hang. So a signal or
    # the thread that watches the parent ends this process.
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
    # The context is split evenly over the slots. It is not fitted to free memory, because the
    # catalogue declares its size.
    parameters.n_parallel = options.parallel
    parameters.n_ctx = options.context_length * options.parallel
    parameters.fit_params = False
    parameters.n_batch = parameters.n_ubatch = max(_BATCH_TOKENS, options.parallel)
    threads = options.threads or default_threads()
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.cache_prompt = True
    parameters.cache_ram_mib = _PREFIX_CACHE_MIB
    parameters.use_jinja = True
    # A last message of the assistant is history, as with other backends, not text to be continued.
    parameters.prefill_assistant = False

    parameters.hostnames = [ENGINE_HOST]
    parameters.port = options.port
    # The parent has bound the port too, with a socket that does not listen.
    parameters.reuse_port = True
    parameters.api_keys = [api_key]
    parameters.cors_origins = parameters.cors_headers = parameters.cors_methods = ""
    parameters.cors_credentials = False
    parameters.ui = False
    # Only the computing loop answers `/slots`, so the path shows whether that loop still runs.
    parameters.endpoint_slots = True
    parameters.verbosity = _ERRORS_ONLY
    return parameters


def default_threads() -> int:
    """Returns all cores but one, because an engine on every core falls to a tenth of its speed next
    to a busy process."""
    return max(1, _cores() - 1)


def _cores() -> int:
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _CPU_QUOTA_FILE.read_text().split()
        quota_cores = int(quota) // int(period)
    except (OSError, ValueError):  # no control group, or a quota of "max"
        return cores
    return min(cores, max(1, quota_cores))


class EngineQuestions:
    """Asks the running engine for its real properties, which may differ from the settings."""

    def __init__(self, origin: str, api_key: str) -> None:
        self._port = int(origin.rsplit(":", 1)[1])
        self._api_key = api_key

    def answers(self) -> dict[str, Any]:
        props = self._ask("/props")
        meta = self._ask("/v1/models")["data"][0]["meta"]
        return {
            # Per slot, and never more than the model was trained for.
            "context_length": int(props["default_generation_settings"]["n_ctx"]),
            "slots": int(props["total_slots"]),
            "tokenizer": _TOKENIZERS.get(meta["vocab_type"], "unknown"),
            "vocabulary": int(meta["n_vocab"]),
            "prefix_cache": self._has_prefix_cache(),
            "prefix_cache_mib": _PREFIX_CACHE_MIB,
        }

    def _has_prefix_cache(self) -> bool:
        """Makes the same call twice, because no path reports the cache. The calls also warm the
        engine up."""
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


if __name__ == "__main__":
    main()
