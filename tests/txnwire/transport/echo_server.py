"""A server process for tests: answers every Send, prints its address, ends when its standard input does.

`python -m tests.txnwire.transport.echo_server`
"""

from __future__ import annotations

import asyncio
import sys

from txnwire.clock import SystemClock
from txnwire.ports import Connection
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.calls import Handler, Peer, serve_connection
from txnwire.transport.grpc_transport import GrpcTransport


class EchoService:
    """Replies to a Send at once, with its sequence id as the entry id; one with sequence id -1 never."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {"send": self._send}

    def _send(self, _peer: Peer, command: pb.Command) -> pb.Command | None:
        send = command.send
        if send.sequence_id == -1:
            return None
        return pb.Command(send_ok=pb.SendOk(producer_id=send.producer_id, ledger_id=1, entry_id=send.sequence_id))

    def disconnected(self, peer: Peer) -> None:
        """Nothing is kept per peer."""


async def main() -> None:
    clock = SystemClock()
    service = EchoService()

    async def serve(connection: Connection) -> None:
        await serve_connection(connection, [service], server_id="echo", roles=["test"], incarnation="i", clock=clock)

    listener = await GrpcTransport(clock).listen("127.0.0.1:0", serve)
    print(listener.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await listener.close()


if __name__ == "__main__":
    asyncio.run(main())
