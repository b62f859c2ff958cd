"""The `Transport` port over gRPC, and every gRPC setting of the project (DESIGN §11).

One connection is one bidirectional call `Exchange.Stream` on its own channel. Its messages are frames, built and parsed
by `txnwire.transport.frames`; gRPC sees bytes. Never fork a process that has used this module: spawn others instead.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import grpc
import structlog

from txnwire.errors import ConnectionLost, InternalError, InvalidArgument, TxnError, for_good
from txnwire.ports import Clock, Connection
from txnwire.protocol import MAX_FRAME_BYTES, PROTOCOL_VERSION
from txnwire.transport.stream import StreamConnection

_log = structlog.get_logger(__name__)

ChannelOption = tuple[str, int | str]

_SERVICE: Final = "txnwire.v1.Exchange"
_METHOD: Final = "Stream"
_ACCEPTED_KEY: Final = "txnstore-protocol"
_RELEASE_TIMEOUT_S: Final = 1.0

_used_in: int | None = None
"""The first process that used gRPC."""


def _expect_not_forked() -> None:
    """▲ gRPC's threads do not exist in a forked child of a process that has used it, even after it closed everything:
    the child's calls would only time out. Raises `InvalidArgument`."""
    global _used_in
    pid = os.getpid()
    if _used_in not in (None, pid):
        raise for_good(
            InvalidArgument(
                f"process {pid} was forked from {_used_in}, which had connected before: gRPC does not survive a fork; "
                "connect in the children only, or start them by 'spawn' or 'forkserver'"
            )
        )
    _used_in = pid


def _keep_for_good() -> None:
    """▲ Keeps the garbage collector of a forked child off the parent's channels and calls: gRPC would join threads that
    do not exist there, and the child would hang or crash at any collection."""
    if _used_in is not None:
        gc.freeze()


os.register_at_fork(after_in_child=_keep_for_good)


# ---- settings ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """How to detect a dead peer: ping after `ping_after_s` of silence, give up after `ping_timeout_s`.

    `without_calls` also pings on channels without a call. A server may reject frequent pings: ours never does; etcd's
    `--grpc-keepalive-min-time` is 5 s by default, and it allows none without calls.
    """

    ping_after_s: float = 5.0
    ping_timeout_s: float = 4.0
    without_calls: bool = True


ETCD_LIVENESS: Final = Liveness(ping_after_s=6.0, ping_timeout_s=4.0, without_calls=False)
"""Pings that every etcd with default settings accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of a TLS client: the authority to trust (None: the system's), and for mutual TLS its own pair."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Of the authority, the key and the certificate. Raises `InvalidArgument` that names the missing or unreadable
        file."""
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgument("mutual TLS takes a certificate and its key: only one of them is given")
        return _pem("authority", self.ca), _pem("key", self.key), _pem("certificate", self.certificate)


def _liveness_options(liveness: Liveness) -> list[ChannelOption]:
    return [
        ("grpc.keepalive_time_ms", int(liveness.ping_after_s * 1000)),
        # ▲ §11: gRPC ignores the documented keepalive timeout and uses this one to detect a dead peer.
        ("grpc.http2.ping_timeout_ms", int(liveness.ping_timeout_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(liveness.ping_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", int(liveness.without_calls)),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def client_channel_options(*, max_receive_bytes: int = -1, liveness: Liveness = ETCD_LIVENESS) -> list[ChannelOption]:
    """Options for a channel of any of our clients, also to etcd. `max_receive_bytes` -1 is unlimited."""
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.enable_retries", 0),  # ▲ §4: the transport never repeats a write of unknown fate
        ("grpc.use_local_subchannel_pool", 1),  # otherwise channels to one address share a socket and its back-off
        ("grpc.enable_http_proxy", 0),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # ▲ §11: gRPC looks a name up every 30 s at most: an etcd at a new address would be found behind the end of
        # leases, and a broker would lose all its segments.
        ("grpc.dns_min_time_between_resolutions_ms", 1000),
        *_liveness_options(liveness),
    ]


def server_options(*, liveness: Liveness) -> list[ChannelOption]:
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server at the same address
        # Clients may ping as often as they like: no strike, no "too many pings".
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1),
        ("grpc.http2.max_ping_strikes", 0),
        *_liveness_options(liveness),
    ]


def channel_credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    """Credentials from PEM files, as they are now. Raises `InvalidArgument` as `TlsFiles.contents`."""
    return grpc.ssl_channel_credentials(*tls.contents())


def _pem(part: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"TLS {part} file {path}: {error.strerror}") from error
    if b"-----BEGIN " not in content:
        raise InvalidArgument(f"TLS {part} file {path}: it is not in PEM form")
    return content


def open_channel(
    address: str,
    *,
    tls: TlsFiles | None = None,
    max_receive_bytes: int = -1,
    liveness: Liveness = ETCD_LIVENESS,
) -> grpc.aio.Channel:
    """A channel to `host:port` with our options; plain without `tls`. The caller closes it."""
    _expect_not_forked()
    options = client_channel_options(max_receive_bytes=max_receive_bytes, liveness=liveness)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=options)


# ---- the asking end ---------------------------------------------------------------------------------------------

_ClientCall = grpc.aio.StreamStreamCall[bytes, bytes]


class _ClientStream:
    """`FrameStream` over the client's end of a call."""

    def __init__(self, channel: grpc.aio.Channel, call: _ClientCall) -> None:
        self._channel = channel
        self._call = call

    async def read(self) -> bytes | None:
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise ConnectionLost(_describe(error)) from error
        except grpc.aio.BaseError as error:
            raise ConnectionLost(str(error)) from error
        return data if isinstance(data, bytes) else None

    async def write(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except grpc.aio.AioRpcError as error:
            raise ConnectionLost(_describe(error)) from error
        except (asyncio.InvalidStateError, grpc.aio.BaseError) as error:
            raise ConnectionLost("the stream has ended") from error

    async def finish(self) -> None:
        """Half-close, then wait for the server to end the call: a cancel would drop frames on their way."""
        await self._call.done_writing()
        await self._call.code()

    def abort(self, reason: Exception | None) -> None:
        self._call.cancel()

    async def release(self) -> None:
        await self._channel.close()


def _describe(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details() or 'no details'}"


async def _await_acceptance(call: _ClientCall, address: str, timeout_s: float) -> None:
    """Wait for our server's mark in the initial metadata, which proves that its handler runs."""
    try:
        async with asyncio.timeout(timeout_s):
            metadata = await call.initial_metadata()
            if metadata.get(_ACCEPTED_KEY) is not None:
                return
            code, details = await call.code(), await call.details()
    except TimeoutError:
        raise ConnectionLost(f"{address}: no connection within {timeout_s:g} s") from None
    if code is grpc.StatusCode.OK:
        # If a server closes at once, gRPC may show the end of the call instead of the metadata before it.
        raise ConnectionLost(f"{address}: the other end has closed it")
    raise ConnectionLost(f"{address}: {_why_not(code, details)}")


def _why_not(code: grpc.StatusCode, details: str | None) -> str:
    """The operating system's reason, without gRPC's text around it."""
    if details and details.startswith("failed to connect to all addresses"):
        return details.rpartition(": ")[2]
    return f"{code.name}: {details or 'no details'}"


# ---- the serving end --------------------------------------------------------------------------------------------

_Context = grpc.aio.ServicerContext[bytes, bytes]
ConnectionHandler = Callable[[Connection], Awaitable[None]]


class _ServerStream:
    """`FrameStream` over the server's end of a call. `over` resolves with the reason when the call must end."""

    def __init__(self, context: _Context) -> None:
        self._context = context
        self.over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.left: asyncio.Event = asyncio.Event()

    async def read(self) -> bytes | None:
        try:
            data = await self._context.read()
        except grpc.aio.BaseError as error:
            raise ConnectionLost(str(error)) from error
        return data if isinstance(data, bytes) else None

    async def write(self, frame: bytes) -> None:
        try:
            await self._context.write(frame)
        except grpc.aio.BaseError as error:
            raise ConnectionLost("the client has disconnected") from error

    async def finish(self) -> None:
        """Nothing to do: the call's final status is the goodbye."""

    def abort(self, reason: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(reason)

    async def release(self) -> None:
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                await self.left.wait()
        except TimeoutError:
            _log.error("grpc_call_does_not_end", peer=self._context.peer())


class GrpcListener:
    """`ports.Listener`: a bound gRPC server and its connections."""

    def __init__(self, server: grpc.aio.Server, address: str, handler: ConnectionHandler, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._address = address
        self._handler = handler
        self._handling: dict[asyncio.Task[None], StreamConnection] = {}
        self._closing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self._address

    async def serve(self, _requests: object, context: _Context) -> None:
        """Serve one accepted call; gRPC cancels this coroutine if the client disappears without a goodbye."""
        await context.send_initial_metadata(((_ACCEPTED_KEY, str(PROTOCOL_VERSION)),))
        stream = _ServerStream(context)
        connection = StreamConnection(stream, _peer_address(context.peer()))
        task = asyncio.get_running_loop().create_task(self._handle(connection), name=f"serving {connection.peer}")
        self._handling[task] = connection
        task.add_done_callback(lambda done: self._handling.pop(done, None))
        try:
            reason = await asyncio.shield(stream.over)
        except asyncio.CancelledError:
            connection.end(ConnectionLost("the client has disconnected"))
            raise
        finally:
            # ▲ gRPC frees the call when this coroutine ends: a pending read or write would crash the process.
            await connection.wait_stopped()
            stream.left.set()
        if reason is not None and not isinstance(reason, ConnectionLost):
            status = reason.grpc_status if isinstance(reason, TxnError) else InternalError.grpc_status
            await context.abort(status, str(reason))

    async def _handle(self, connection: StreamConnection) -> None:
        accepted = self._clock.monotonic()
        try:
            await self._handler(connection)
        except ConnectionLost as lost:
            _log.debug("connection_lost", peer=connection.peer, reason=str(lost))
        except Exception as error:  # noqa: BLE001 - any failure ends the connection and is logged
            _log.exception("connection_handler_failed", peer=connection.peer, error=repr(error))
            connection.end(InternalError(f"{type(error).__name__}: {error}"))
        finally:
            await connection.close()
            _log.debug("connection_ended", peer=connection.peer, after_s=round(self._clock.monotonic() - accepted, 3))

    async def close(self, grace_s: float = 1.0) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(grace_s), name="closing listener")
        await asyncio.shield(self._closing)

    async def _close(self, grace_s: float) -> None:
        stopping = asyncio.get_running_loop().create_task(self._server.stop(grace_s + 2.0))
        handling = dict(self._handling)
        await asyncio.gather(*(connection.close() for connection in handling.values()))
        if handling:
            _, late = await asyncio.wait(handling, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                _, stuck = await asyncio.wait(late, timeout=grace_s)
                for task in stuck:
                    _log.error("connection_handler_stuck", task=task.get_name())
        await stopping


def _peer_address(peer: str) -> str:
    """`host:port` of gRPC's `ipv4:host:port` or `ipv6:%5Bhost%5D:port`."""
    return unquote(peer.partition(":")[2])


# ---- the transport ----------------------------------------------------------------------------------------------


class GrpcTransport:
    """`ports.Transport` over gRPC."""

    def __init__(self, clock: Clock, *, liveness: Liveness | None = None) -> None:
        self._clock = clock
        self._liveness = liveness or Liveness()

    async def connect(self, address: str, *, timeout_s: float) -> Connection:
        """See `ports.Transport`. A refused connection fails at once, not after `timeout_s`."""
        channel = open_channel(address, max_receive_bytes=MAX_FRAME_BYTES, liveness=self._liveness)
        try:
            call: _ClientCall = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")()
            await _await_acceptance(call, address, timeout_s)
        except BaseException:
            await channel.close()
            raise
        return StreamConnection(_ClientStream(channel, call), address)

    async def listen(self, address: str, handler: ConnectionHandler) -> GrpcListener:
        """See `ports.Transport`. Raises `InvalidArgument` if the address cannot be bound."""
        _expect_not_forked()
        server = grpc.aio.server(options=server_options(liveness=self._liveness))
        try:
            port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise InvalidArgument(
                f"cannot listen on {address}: another program listens there, or it is no address of this machine; "
                f"give another host:port"
            ) from error
        listener = GrpcListener(server, f"{address.rpartition(':')[0]}:{port}", handler, self._clock)
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(listener.serve)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method}),))
        await server.start()
        return listener
