"""Finds free loopback ports for programs that cannot choose one themselves."""

import random
import socket

# Below the ports that Linux gives to connections and to listeners without a port of their own, so that
# no other program gets the port before it is used.
_PORTS = range(10_000, 32_768)


def free_port() -> int:
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
