"""The name server answers what a resolver asks of it."""

from __future__ import annotations

import socket
import struct

from tests.containers.release.names import HEADER, answer

KNOWN = {"here.prod.svc.cluster.local": ["10.1.2.3", "10.1.2.4"], "none-ready.prod.svc.cluster.local": []}
AAAA = 28


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(one)]) + one.encode() for one in name.split("."))
    return HEADER.pack(7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def answered(name: str, kind: int = 1) -> tuple[int, list[str]]:
    """Code of the answer, and the addresses in it."""
    asked = query(name, kind)
    found = answer(asked, KNOWN.get)
    number, flags, questions, answers, _, _ = HEADER.unpack_from(found)
    assert (number, questions) == (7, 1)
    assert found[HEADER.size : len(asked)] == asked[HEADER.size :]
    records = [found[len(asked) + 16 * one :][:16] for one in range(answers)]
    return flags & 0xF, [socket.inet_ntoa(one[12:]) for one in records]


def test_it_tells_addresses_no_addresses_and_no_such_name() -> None:
    assert answered("Here.prod.svc.cluster.local") == (0, ["10.1.2.3", "10.1.2.4"])
    assert answered("here.prod.svc.cluster.local", AAAA) == (0, [])
    assert answered("none-ready.prod.svc.cluster.local") == (0, [])
    assert answered("here.prod.svc.cluster.local.cluster.local") == (3, [])
