"""A server of test services, and callers of it."""

from __future__ import annotations

from collections.abc import Callable

from txnwire.clock import SystemClock
from txnwire.errors import (
    TxnError,
)
from txnwire.ports import Connection
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.calls import Caller, Handler, Peer, serve_connection
from txnwire.transport.grpc_transport import GrpcListener, GrpcTransport
from txnwire.transport.serving import Authenticate, Service

CLOCK = SystemClock()


HELLO = pb.Hello(client_name="tests", session_id=b"session")


def send(sequence_id: int, size: int = 0) -> pb.Command:
    return pb.Command(send=pb.Send(sequence_id=sequence_id, entry=bytes(size)))


def send_ok(command: pb.Command) -> pb.Command:
    return pb.Command(send_ok=pb.SendOk(entry_id=command.send.sequence_id))


class TestService:
    """Handlers are set by each test; what happens to peers is kept."""

    __test__ = False

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {"send": lambda _peer, command: send_ok(command)}
        self.peers: list[Peer] = []
        self.events: list[str] = []

    def disconnected(self, peer: Peer) -> None:
        self.peers.append(peer)
        self.events.append("disconnected")


class TestServer:
    """A listener that serves with these services; the connections it has accepted are kept."""

    __test__ = False

    def __init__(self) -> None:
        self.services: list[Service] = []
        self.authenticate: Authenticate | None = None
        self.connections: list[Connection] = []
        self.served = 0
        self.listener: GrpcListener | None = None

    @property
    def address(self) -> str:
        assert self.listener is not None
        return self.listener.address

    async def __call__(self, connection: Connection) -> None:
        self.connections.append(connection)
        await serve_connection(
            connection,
            self.services,
            server_id="server-1",
            roles=["coordinator", "broker"],
            incarnation="abc",
            clock=CLOCK,
            authenticate=self.authenticate,
        )
        self.served += 1


class Pushes:
    """What a caller was told unasked; `take` may be replaced."""

    def __init__(self) -> None:
        self.commands: list[pb.Command] = []
        self.reasons: list[TxnError] = []
        self.take: Callable[[pb.Command], object] = self.commands.append


def pushes_to(pushes: Pushes) -> Callable[[pb.Command], None]:
    def take(command: pb.Command) -> None:
        pushes.take(command)

    return take


async def open_caller(address: str, pushes: Pushes, hello: pb.Hello = HELLO, timeout_s: float = 10.0) -> Caller:
    return await Caller.open(
        GrpcTransport(CLOCK),
        address,
        hello,
        clock=CLOCK,
        on_push=pushes_to(pushes),
        on_closed=pushes.reasons.append,
        timeout_s=timeout_s,
    )
