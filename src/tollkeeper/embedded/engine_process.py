"""Runs the embedded engine, llama.cpp's server, on the loopback interface as a separate program.

This program imports almost no modules of the gateway, so that it starts quickly and has none of the
gateway's secrets in its memory. It ends when its parent process, the supervisor, ends.

The parent writes one line of JSON to this program's standard input. The line contains the API key, which
must not appear on a command line. The parent keeps the pipe open; when the pipe is closed, this program
ends. When the engine is ready, this program writes one line of JSON to standard output.
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

# The number of tokens that the engine computes at a time. While it computes a batch, it cannot stop a
# call, and the streams of other calls wait. A batch of 64 tokens takes less than a second on one slow core,
# and prompts are processed as fast as with batches of 2,048 tokens.
_BATCH_TOKENS = 64
# The memory for prompts whose slot was given to another call. The engine's default is 8 GB.
_PREFIX_CACHE_MIB = 256
# The log level at which the engine writes only errors.
_ERRORS_ONLY = 1
_ANSWER_TIMEOUT_S = 60.0
# The names of tokenizers, by the engine's numbers for them.
_TOKENIZERS = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}
_REPEATED_PROMPT = "One, two, three, four, five"
_CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
# The exit code if the engine refuses to start, for example because of its model file.
_EXIT_REFUSED = 3


@dataclass(frozen=True, slots=True)
class Handshake:
    """Contains the values of the line that the parent writes to standard input."""

    api_key: str
    parent_pid: int


def main() -> NoReturn:
    options = _parse(sys.argv[1:])
    first_line = json.loads(sys.stdin.buffer.readline())
    handshake = Handshake(api_key=first_line["api_key"], parent_pid=first_line["parent_pid"])
    end_with_parent(handshake.parent_pid)
    forbid_core_dumps()
    report_descriptor = redirected_standard_output()
    try:
        server = xllamacpp.Server(_parameters(options, handshake.api_key))
    except RuntimeError as exc:
        sys.stderr.write(f"{exc}\n")
        sys.stderr.flush()
        os._exit(_EXIT_REFUSED)
    origin = server.listening_address
    report = EngineProperties(origin, handshake.api_key).as_report()
    os.write(report_descriptor, json.dumps(report).encode() + b"\n")
    # The server's own stop function is not used: it waits for open calls, and was observed to hang. This
    # process runs until a signal or the thread that watches the parent ends it.
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
    # The engine divides `n_ctx` evenly between the slots. It must not reduce the context if little memory
    # is free (`fit_params`), because the model catalogue declares the context's size.
    parameters.n_parallel = options.parallel
    parameters.n_ctx = options.context_length * options.parallel
    parameters.fit_params = False
    parameters.n_batch = parameters.n_ubatch = max(_BATCH_TOKENS, options.parallel)
    threads = options.threads or default_threads()
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.cache_prompt = True
    parameters.cache_ram_mib = _PREFIX_CACHE_MIB
    parameters.use_jinja = True
    # If the last message is the assistant's, the engine writes a new answer, like other backends, instead
    # of continuing that message.
    parameters.prefill_assistant = False

    parameters.hostnames = [ENGINE_HOST]
    parameters.port = options.port
    # The parent has bound the same port with a socket that does not listen, to reserve the port.
    parameters.reuse_port = True
    parameters.api_keys = [api_key]
    parameters.cors_origins = parameters.cors_headers = parameters.cors_methods = ""
    parameters.cors_credentials = False
    parameters.ui = False
    # The supervisor requests `/slots` to find out whether the engine hangs, because the engine answers
    # this path in the loop that computes tokens.
    parameters.endpoint_slots = True
    parameters.verbosity = _ERRORS_ONLY
    return parameters


def default_threads() -> int:
    """Returns the number of cores minus one. An engine that uses every core slows down to a tenth of its
    speed if another process is busy."""
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
    """Asks the running engine for its actual properties, which may differ from the settings."""

    def __init__(self, origin: str, api_key: str) -> None:
        self._port = int(origin.rsplit(":", 1)[1])
        self._api_key = api_key

    def as_report(self) -> dict[str, Any]:
        props = self._ask("/props")
        meta = self._ask("/v1/models")["data"][0]["meta"]
        return {
            # The tokens of one slot, at most as many as the model was trained for.
            "context_length": int(props["default_generation_settings"]["n_ctx"]),
            "slots": int(props["total_slots"]),
            "tokenizer": _TOKENIZERS.get(meta["vocab_type"], "unknown"),
            "vocabulary": int(meta["n_vocab"]),
            "prefix_cache": self._has_prefix_cache(),
            "prefix_cache_mib": _PREFIX_CACHE_MIB,
        }

    def _has_prefix_cache(self) -> bool:
        """Tells whether the engine reuses computations if the same prompt is sent twice. This is tested,
        because no path of the engine reports whether it has a cache. The prompts also warm the engine up."""
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
