"""A name server for one network: what it answers is asked anew each time, as Services change with their pods."""

from __future__ import annotations

import os
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

A, IN, TTL_S = 1, 1, 5
PORT = 53
ANSWER, NO_SUCH_NAME = 0x8580, 3
HEADER = struct.Struct("!HHHHHH")

Lookup = Callable[[str], Sequence[str] | None]
"""Name, without the last dot → IPv4 addresses; None: there is no such name."""


def why_no_names() -> str | None:
    """Why names cannot be served here; None if they can."""
    return None if os.geteuid() == 0 else f"serving names on port {PORT} takes root"


def question(packet: bytes) -> tuple[str, int, bytes]:
    """Name, type, and the bytes that say both."""
    labels, place = [], HEADER.size
    while (size := packet[place]) != 0:
        labels.append(packet[place + 1 : place + 1 + size].decode("ascii", errors="replace"))
        place += 1 + size
    (kind,) = struct.unpack_from("!H", packet, place + 1)
    return ".".join(labels).lower(), kind, packet[HEADER.size : place + 5]


def answer(packet: bytes, lookup: Lookup) -> bytes:
    """To a query for one name. Of other types than A there is nothing under a name that exists."""
    number, *_ = HEADER.unpack_from(packet)
    name, kind, asked = question(packet)
    found = lookup(name)
    addresses = list(found or ()) if kind == A else []
    head = HEADER.pack(number, ANSWER | (NO_SUCH_NAME if found is None else 0), 1, len(addresses), 0, 0)
    records = [
        struct.pack("!HHHIH", 0xC000 | HEADER.size, A, IN, TTL_S, 4) + socket.inet_aton(address)
        for address in addresses
    ]
    return head + asked + b"".join(records)


@contextmanager
def name_server(address: str, lookup: Lookup) -> Iterator[None]:
    """▲ In threads of its own: a test whose loop is busy does not keep a cluster waiting for names."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            packet, from_socket = self.request
            from_socket.sendto(answer(packet, lookup), self.client_address)

    with socketserver.ThreadingUDPServer((address, PORT), Handler) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, name="names", daemon=True)
        serving.start()
        try:
            yield
        finally:
            server.shutdown()
            serving.join()
