"""Opens and closes listening sockets. Commands bind theirs first, so that an operator hears at once if a port
is in use."""

import asyncio
import ctypes
import errno
import socket
import struct
import sys

from tollkeeper.core.errors import StateConflict

# Queued by the kernel.
BACKLOG = 2048
# Sets a BPF filter for packets, which it sees from their TCP header on.
_SO_ATTACH_FILTER = 26
# Drops packets with SYN and without ACK, which open connections. Operation, jump if true, jump if false,
# operand.
_DROP_SYN_PROGRAM = (
    (0x30, 0, 0, 13),  # load the byte with the flags
    (0x54, 0, 0, 0x12),  # clear all flags except SYN and ACK
    (0x15, 0, 1, 0x02),  # is SYN set and ACK not set?
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFF_FFFF),  # accept the packet
)


def bind(host: str, port: int, *, setting: str) -> socket.socket:
    """Raises StateConflict, naming the section `setting`, if it can't be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle only for sockets with an explicit protocol.
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
    """Call it before the listener is closed. Only on Linux.

    Connections that are being opened complete, and can be accepted. Otherwise there would always be some that
    the kernel has opened and the server hasn't accepted, and closing would reset them and lose their
    requests. A dropped client tries again after a second, and is refused if the listener is closed by then.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(
        b"".join(struct.pack("HBBI", *line) for line in _DROP_SYN_PROGRAM)
    )
    program_header = struct.pack("HL", len(_DROP_SYN_PROGRAM), ctypes.addressof(program))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program_header)


def stop_listening(server: asyncio.Server) -> None:
    """Closes one iteration later, because the event loop accepts in one iteration and sets up in the next. In
    between, the setup would fail silently, and the connection be neither served nor closed."""
    loop = server.get_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    loop.call_soon(server.close)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
