"""Finds free loopback ports for programs that cannot choose a port themselves."""

import random
import socket

# These ports are below Linux's range for automatically assigned ports, so Linux does not assign the
# port to another program before it is used.
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
