"""The gRPC transport: the contract, under asyncio and uvloop, and what only a real network and real processes show."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.txnwire.transport.transport_contract import Server, TransportContract, command, echo, take
from tests.waiting import until
from txnwire.clock import SystemClock
from txnwire.errors import ConnectionLost, InvalidArgument
from txnwire.ports import Connection
from txnwire.transport.grpc_transport import (
    ETCD_LIVENESS,
    GrpcTransport,
    Liveness,
    TlsFiles,
    channel_credentials,
    client_channel_options,
    open_channel,
)

ROOT = Path(__file__).parents[3]


class TestGrpcTransport(TransportContract):
    @pytest.fixture
    def address(self) -> str:
        return "127.0.0.1:0"

    @pytest.fixture
    def transport(self) -> GrpcTransport:
        return GrpcTransport(SystemClock())


@pytest.fixture
def transport() -> GrpcTransport:
    return GrpcTransport(SystemClock())


@pytest.fixture
async def server(transport: GrpcTransport) -> AsyncIterator[Server]:
    server = Server()
    server.handler = echo
    server.listener = await transport.listen("127.0.0.1:0", server)
    yield server
    await server.listener.close()


def address_of(server: Server) -> str:
    assert server.listener is not None
    return server.listener.address


async def test_the_address_is_the_one_bound(server: Server) -> None:
    host, _, port = address_of(server).rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


async def test_a_port_that_is_taken_is_an_error_and_not_shared(transport: GrpcTransport, server: Server) -> None:
    with pytest.raises(InvalidArgument, match="cannot listen on"):
        await transport.listen(address_of(server), server)


async def test_an_address_that_is_none_is_an_error(transport: GrpcTransport, server: Server) -> None:
    with pytest.raises(InvalidArgument, match="cannot listen on"):
        await transport.listen("no such host:port", server)
    with pytest.raises(ConnectionLost, match="no such host"):
        await transport.connect("no such host:port", timeout_s=5)


async def test_every_connection_has_a_socket_of_its_own(transport: GrpcTransport, server: Server) -> None:
    """Channels of one process to one address share a socket by default, and with it flow control and back-off."""
    clients = [await transport.connect(address_of(server), timeout_s=10) for _ in range(3)]
    await until(lambda: len({connection.peer for connection in server.accepted}) == 3)
    for client in clients:
        await client.close()


@contextlib.contextmanager
def mute_listener() -> Iterator[str]:
    """A socket to which the kernel connects, and behind which nobody speaks."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def test_connect_fails_in_time_where_nobody_speaks(transport: GrpcTransport) -> None:
    with mute_listener() as address:
        async with asyncio.timeout(5):
            with pytest.raises(ConnectionLost, match=r"no connection within 0\.3 s"):
                await transport.connect(address, timeout_s=0.3)


async def test_a_cancelled_connect_leaves_nothing_behind(transport: GrpcTransport) -> None:
    before = asyncio.all_tasks()
    with mute_listener() as address:
        connecting = asyncio.ensure_future(transport.connect(address, timeout_s=10))
        await asyncio.sleep(0.05)
        connecting.cancel()
        await asyncio.wait({connecting})
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_server_of_another_kind_is_connection_lost() -> None:
    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    with pytest.raises(ConnectionLost, match="UNIMPLEMENTED"):
        await GrpcTransport(SystemClock()).connect(f"127.0.0.1:{port}", timeout_s=5)
    await other.stop(None)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"\xff\xff\xff", "frame of 3 bytes is malformed"),
        (b"\x08\x02", "frame version 2: this version of txnstore speaks 1"),
    ],
    ids=["malformed", "version"],
)
async def test_a_bad_frame_ends_the_call_with_a_status_that_says_why(server: Server, data: bytes, named: str) -> None:
    channel = open_channel(address_of(server))
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/txnwire.v1.Exchange/Stream")()
    await call.write(data)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in (caught.value.details() or "")
    await channel.close()
    await until(lambda: len(server.ended) == 1)


async def test_a_frame_over_the_limit_ends_the_call(server: Server) -> None:
    channel = open_channel(address_of(server))
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/txnwire.v1.Exchange/Stream")()
    await call.write(bytes(20_000_000))
    assert await call.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)
    await channel.close()
    await until(lambda: len(server.ended) == 1)


async def test_a_call_that_its_client_ends_in_order_ends_well(server: Server) -> None:
    """▲ Proxies and meshes count a status other than OK as a failure of the server."""
    channel = open_channel(address_of(server))
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/txnwire.v1.Exchange/Stream")()
    await call.initial_metadata()
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    await channel.close()


async def test_a_client_that_vanishes_ends_its_handler(server: Server) -> None:
    """Cancelling the call is what a dying client's kernel amounts to; the server must not touch the call any more."""
    channel = open_channel(address_of(server))
    for turns in range(20):
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/txnwire.v1.Exchange/Stream")()
        await call.initial_metadata()
        await until(lambda count=turns + 1: len(server.accepted) == count)  # type: ignore[misc]
        server.accepted[-1].send_nowait(command(1, size=3_000_000))
        if turns % 2:
            await asyncio.sleep(0)
        call.cancel()
    await until(lambda: len(server.ended) == 20)
    await channel.close()


# ---- real processes ---------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def echo_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.txnwire.transport.echo_server", cwd=ROOT, stdin=-1, stdout=-1, stderr=-3
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with asyncio.timeout(30):
            address = (await process.stdout.readline()).decode().strip()
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        process.stdin.close()
        await process.wait()


@pytest.mark.process
@pytest.mark.parametrize(
    ("end", "named"), [(signal.SIGKILL, "UNAVAILABLE"), (signal.SIGSTOP, "UNAVAILABLE")], ids=["killed", "paused"]
)
async def test_a_dead_peer_is_noticed(end: signal.Signals, named: str) -> None:
    """▲ DESIGN §11: pings with their own timeout. A paused process keeps its sockets open and answers nothing."""
    quick = GrpcTransport(SystemClock(), liveness=Liveness(ping_after_s=0.2, ping_timeout_s=0.3))
    async with echo_process() as (process, address):
        connection = await quick.connect(address, timeout_s=10)
        process.send_signal(end)
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionLost, match=named):
                await connection.receive()
        await connection.close()


@pytest.mark.process
async def test_an_idle_connection_survives_many_pings() -> None:
    """A server may call frequent pings an attack ("too many pings"); ours must not."""
    quick = GrpcTransport(SystemClock(), liveness=Liveness(ping_after_s=0.05, ping_timeout_s=5.0))
    server = Server()
    server.handler = echo
    listener = await quick.listen("127.0.0.1:0", server)
    connection = await quick.connect(listener.address, timeout_s=10)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection.receive(), 1.0)
    connection.send_nowait(command(1))
    assert await take(connection, 1) == [1]
    await connection.close()
    await listener.close()


# ---- settings ---------------------------------------------------------------------------------------------------


def test_writes_are_never_retried_by_the_transport() -> None:
    """▲ DESIGN §4: a write of unknown fate must not be sent again behind our back."""
    options = dict(client_channel_options())
    assert options["grpc.enable_retries"] == 0
    assert options["grpc.max_receive_message_length"] == -1


def test_pings_suit_an_etcd_with_default_settings() -> None:
    """etcd refuses pings closer than 5 s together, and all on a channel without calls."""
    assert ETCD_LIVENESS.ping_after_s > 5
    assert dict(client_channel_options())["grpc.keepalive_permit_without_calls"] == 0


def test_a_dead_peer_is_noticed_in_ten_seconds_by_default() -> None:
    assert Liveness().ping_after_s + Liveness().ping_timeout_s <= 10


PEM = b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (lambda d: TlsFiles(ca=d / "absent.pem"), "TLS authority file .*absent.pem: No such file"),
        (lambda d: TlsFiles(ca=d), "TLS authority file .*: Is a directory"),
        (lambda d: TlsFiles(ca=d / "noise"), "TLS authority file .*noise: it is not in PEM form"),
        (lambda d: TlsFiles(certificate=d / "pem", key=d / "absent"), "TLS key file .*absent: No such file"),
        (lambda d: TlsFiles(certificate=d / "pem"), "a certificate and its key"),
        (lambda d: TlsFiles(key=d / "pem"), "a certificate and its key"),
    ],
)
def test_a_tls_file_that_cannot_be_used_is_named(tmp_path: Path, files: Callable[[Path], TlsFiles], named: str) -> None:
    (tmp_path / "noise").write_bytes(b"noise")
    (tmp_path / "pem").write_bytes(PEM)
    with pytest.raises(InvalidArgument, match=named):
        channel_credentials(files(tmp_path))


async def test_every_connection_s_handler_may_close_it_itself(transport: GrpcTransport, server: Server) -> None:
    async def close_at_once(connection: Connection) -> None:
        await connection.close()

    server.handler = close_at_once

    async def connect_and_receive() -> None:
        client = await transport.connect(address_of(server), timeout_s=10)
        try:
            await client.receive()
        finally:
            await client.close()

    with pytest.raises(ConnectionLost, match="the other end has closed it"):
        await connect_and_receive()
