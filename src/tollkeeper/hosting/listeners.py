"""Opens and closes listening sockets.

Commands bind their sockets before they start anything else, so that an operator is told immediately if
a port is in use.
"""

import asyncio
import ctypes
import errno
import socket
import struct
import sys

from tollkeeper.domain.errors import StateConflict

# The number of connections that the kernel queues until the server accepts them.
BACKLOG = 2048
# On Linux, this socket option sets a BPF filter for received packets. The filter sees a packet from its
# TCP header on.
_SO_ATTACH_FILTER = 26
# A BPF program that drops packets with SYN and without ACK, which open a connection. Each line has an
# operation, the jump distances if a comparison is true and if it is false, and an operand.
_DROP_SYN_PROGRAM = (
    (0x30, 0, 0, 13),  # load the byte with the flags
    (0x54, 0, 0, 0x12),  # clear all flags except SYN and ACK
    (0x15, 0, 1, 0x02),  # is SYN set and ACK not set?
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFF_FFFF),  # accept the packet
)


def bind(host: str, port: int, *, setting: str) -> socket.socket:
    """Returns a listening socket. If the address cannot be bound, raises StateConflict with a message that
    names `setting`, the section of the settings that contains the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets with an explicit protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        advice = ""
        if exc.errno == errno.EADDRINUSE:
            variable = f"TOLLKEEPER_{setting.upper()}__PORT"
            advice = (
                f" Choose another port with {setting}.port or {variable}=N; 0 chooses a free port."
            )
        raise StateConflict(
            f"{setting} = {host}:{port} cannot be bound: {exc.strerror}.{advice}"
        ) from exc
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def drop_new_connections(listener: socket.socket) -> None:
    """Makes the kernel drop the first packet of each new connection. Must be called before the listener is
    closed. Does nothing if the operating system is not Linux.

    Connections that are already being opened are completed, and the server can accept them. Without this
    filter, there would always be connections that the kernel has opened and the server has not accepted.
    Closing the listener would reset them, and their requests would be lost. A client whose first packet
    was dropped repeats it after a second. If the listener is closed by then, the connection is refused.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(
        b"".join(struct.pack("HBBI", *line) for line in _DROP_SYN_PROGRAM)
    )
    program_header = struct.pack("HL", len(_DROP_SYN_PROGRAM), ctypes.addressof(program))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program_header)


def stop_listening(server: asyncio.Server) -> None:
    """Stops accepting connections, and closes the server one iteration of the event loop later.

    The event loop accepts a connection in one iteration and sets it up in the next. If the server were
    closed in between, the setup would fail silently: the client's connection would be neither served nor
    closed.
    """
    loop = server.get_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    loop.call_soon(server.close)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
