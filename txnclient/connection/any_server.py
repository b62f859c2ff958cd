"""Requests that more than one server answers."""

from __future__ import annotations

import itertools

from txnclient.connection.deadlines import Deadline
from txnclient.connection.links import Link
from txnclient.connection.session import Session
from txnwire.errors import ConnectionLost, TxnError
from txnwire.proto import txn_pb2 as pb

CALL_TIMEOUT_S = 10.0
"""Timeout of one request to one server; the call tries other servers until its own deadline."""


async def call(session: Session, command: pb.Command, what: str, *, role: str | None = None) -> pb.Command:
    """Ask the servers in turn, those known to have `role` first, until one answers."""
    deadline = session.deadline()
    tries = itertools.count()

    async def attempt() -> pb.Command:
        # ▲ The try counts before it connects: otherwise every try would ask the same unreachable server.
        link = await _any_link(session, role, next(tries), deadline)
        return await link.call(command, timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))

    return await session.repeat(what, deadline, attempt)


async def _any_link(session: Session, role: str | None, tries: int, deadline: Deadline) -> Link:
    addresses = session.directory.addresses()
    # ▲ Each try begins with another one: a server may be connected and answer nothing.
    addresses = [*addresses[tries % len(addresses) :], *addresses[: tries % len(addresses)]]
    if role is None:
        return await session.links.get(addresses[0], deadline)
    failed: TxnError = ConnectionLost("no server is known")
    for address in addresses:
        try:
            link = await session.links.get(address, deadline)
        except ConnectionLost as error:
            failed = error
            continue
        if role in link.caller.hello_ok.roles:
            return link
        failed = ConnectionLost(f"none of the servers {', '.join(addresses)} that can be reached has the role {role}")
    raise failed
