"""The network of the simulation: the production `StreamConnection` over streams that delay, lose and cut.

Commands are serialized and parsed for real. Frames of one direction of one connection arrive in order; nothing else is
promised. Network faults: `cut` (one way, between hosts), `slow` (one way, between hosts), a connection that lags behind
others of the same hosts (`lag`), `reset` (frames under way are lost with the connection), `lose_replies` (requests
arrive, answers do not), a host that falls silent (`owner_died`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from simulation.world.loop import ProcessLife, SimLoop
from txnwire.errors import ConnectionLost, InvalidArgument
from txnwire.ports import Connection
from txnwire.transport.stream import StreamConnection

DEAD_PEER_S = (4.0, 9.0)
"""Silence after which keep-alives close a connection (the gRPC transport's settings)."""

WINDOW_FRAMES = 64
WINDOW_BYTES = 4 * 1024 * 1024
"""Limit of bytes under way in one direction and not yet read, beyond which the writer waits: flow control."""

Route = tuple[str, str]
"""(from host, to host)"""
ConnectionHandler = Callable[[Connection], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds, drawn anew for every frame; some frames take `slow_s`."""

    usual_s: tuple[float, float] = (0.0001, 0.0008)
    slow_s: tuple[float, float] = (0.005, 0.25)
    slow_share: float = 0.01


class Network:
    """All hosts and connections. A *host* is the part of an address before the colon."""

    def __init__(self, loop: SimLoop, seed: int, delays: Delays | None = None) -> None:
        self.loop = loop
        self.random = random.Random(f"{seed}/network")
        self.delays = delays or Delays()
        self._listeners: dict[str, SimListener] = {}
        self._links: dict[_Link, None] = {}
        self._cuts: dict[Route, None] = {}
        self._slow: dict[Route, Delays] = {}
        self._dark: dict[str, None] = {}
        self._next_link = 1
        self._next_port = 40_000

    def delay_s(self, route: Route | None = None, lag: Delays | None = None) -> float:
        """Delay of one frame on a route, on a connection that may lag; None on an unknown route."""
        delays = lag or (self._slow.get(route, self.delays) if route else self.delays)
        span = delays.slow_s if self.random.random() < delays.slow_share else delays.usual_s
        return self.random.uniform(*span)

    # --- faults ---

    def cut(self, source: str, target: str) -> None:
        """Nothing from host `source` reaches host `target` until `mend`; keep-alives close connections that are cut for
        long."""
        self._cuts[source, target] = None
        for link in self._links:
            if (source, target) in (link.route(0), link.route(1)):
                self.loop.call_in_world(self.random.uniform(*DEAD_PEER_S), self._give_up, link)

    def slow(self, route: Route, delays: Delays) -> None:
        """Every frame from one host to another takes a time from `delays` until `mend`. Each connection draws its own,
        so frames on several connections arrive in any order."""
        self._slow[route] = delays

    def heal(self) -> None:
        self._cuts.clear()
        self._slow.clear()
        for link in self._links:
            link.lag = None
            link.resume()

    def mend(self, routes: Iterable[Route]) -> None:
        """Mends the cut or slow ones among these."""
        for route in routes:
            self._cuts.pop(route, None)
            self._slow.pop(route, None)
        for link in self._links:
            link.resume()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def _give_up(self, link: _Link) -> None:
        if any(self.is_cut(*link.route(side)) for side in (0, 1)):
            link.reset("no sign of life from the other end")

    def links(self) -> list[_Link]:
        """Open connections, oldest first."""
        return list(self._links)

    def owner_died(self, owner: ProcessLife, *, host: str | None = None) -> None:
        """The kernel of a killed process closes its ports and notifies the peers, after what it had sent. `host`: its
        whole host failed: no peer is notified, and no connection is refused until `host_is_up`."""
        for address in [address for address, listener in self._listeners.items() if listener.owner is owner]:
            del self._listeners[address]
        if host is not None:
            self._dark[host] = None
        for link in self.links():
            for side in (0, 1):
                if link.ends[side].owner is owner:
                    link.ends[side].die(silently=host is not None)

    def host_is_up(self, host: str) -> None:
        self._dark.pop(host, None)

    def answers(self, source: str, target: str) -> bool:
        """Whether a connection from one host to the other can be opened, or refused, at all."""
        return not (self.is_cut(source, target) or self.is_cut(target, source) or target in self._dark)

    # --- used by the transports ---

    def listen(self, listener: SimListener) -> None:
        self._listeners[listener.address] = listener

    def stop_listening(self, listener: SimListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def is_taken(self, address: str) -> bool:
        return address in self._listeners

    def listener_at(self, address: str) -> SimListener | None:
        return self._listeners.get(address)

    def new_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def add_link(self, client: ProcessLife, client_host: str, listener: SimListener) -> _Link:
        number, self._next_link = self._next_link, self._next_link + 1
        link = _Link(self, number, (client, client_host), (listener.owner, listener.host))
        self._links[link] = None
        return link

    def forget(self, link: _Link) -> None:
        self._links.pop(link, None)


class _Link:
    """Both directions of one connection: `ends[0]` opened it, `ends[1]` serves."""

    def __init__(
        self, network: Network, number: int, client: tuple[ProcessLife, str], server: tuple[ProcessLife, str]
    ) -> None:
        self.network = network
        self.number = number
        self.lag: Delays | None = None
        """Lag of both directions: each connection has its own pace."""
        self.ends = (SimStream(self, 0, *client), SimStream(self, 1, *server))

    def route(self, side: int) -> Route:
        """The route of what `side` sends."""
        return self.ends[side].host, self.ends[1 - side].host

    def reset(self, reason: str) -> None:
        """Both ends lose the connection, each when its kernel notices; frames under way are lost."""
        self.network.forget(self)
        self.network.loop.trace.record(self.network.loop.time(), "reset", self.number, reason)
        for end in self.ends:
            end.drop_arriving()
            self.network.loop.call_in_world(self.network.delay_s(), end.lose, reason)

    def lose_replies(self, side: int, after_s: float) -> None:
        """What `side` sends from now on is lost; what it is sent still arrives until the reset."""
        self.ends[side].muted = True
        self.network.loop.call_in_world(after_s, self.reset, "reset after delivery")

    def resume(self) -> None:
        for end in self.ends:
            end.deliver_due()


class SimStream:
    """One end: `txnwire.transport.stream.FrameStream` over the virtual network."""

    def __init__(self, link: _Link, side: int, owner: ProcessLife, host: str) -> None:
        self._link = link
        self._network = link.network
        self._loop = link.network.loop
        self._side = side
        self.owner = owner
        self.host = host
        self.muted = False
        self._arriving: deque[tuple[float, bytes | None]] = deque()
        self._inbox: deque[bytes | None] = deque()
        self._unread_bytes = 0
        self._lost: str | None = None
        self._reader: asyncio.Future[None] | None = None
        self._window: asyncio.Future[None] | None = None

    @property
    def _other(self) -> SimStream:
        return self._link.ends[1 - self._side]

    # --- the production side ---

    async def read(self) -> bytes | None:
        while not self._inbox:
            if self._lost is not None:
                raise ConnectionLost(self._lost)
            self._reader = self._loop.create_future()
            await self._reader
        frame = self._inbox.popleft()
        self._unread_bytes -= len(frame or b"")
        if self._other._window is not None:
            _wake(self._other._window)
        return frame

    async def write(self, frame: bytes) -> None:
        while self._lost is None and self._other.window_full():
            self._window = self._loop.create_future()
            await self._window
        if self._lost is not None or not self.owner.alive:
            raise ConnectionLost(self._lost or "its process is dead")
        self._send(frame)

    async def finish(self) -> None:
        if self._lost is None and self.owner.alive:
            self._send(None)

    def abort(self, reason: Exception | None) -> None:
        if self._lost is None and self.owner.alive:
            self._lost = "closed here"
            self._send(None)
        _wake(self._reader)

    async def release(self) -> None:
        if self._other._lost is not None:
            self._network.forget(self._link)

    # --- the network's side ---

    def _send(self, frame: bytes | None) -> None:
        if not self.muted:
            self._other.on_the_way(frame)

    def window_full(self) -> bool:
        return len(self._arriving) + len(self._inbox) >= WINDOW_FRAMES or self._unread_bytes >= WINDOW_BYTES

    def on_the_way(self, frame: bytes | None) -> None:
        """▲ In order: no frame overtakes an earlier one on this connection."""
        due = self._loop.time() + self._network.delay_s(self._link.route(1 - self._side), self._link.lag)
        if self._arriving:
            due = max(due, self._arriving[-1][0])
        self._arriving.append((due, frame))
        self._unread_bytes += len(frame or b"")
        self._loop.call_in_world(due - self._loop.time(), self.deliver_due)

    def deliver_due(self) -> None:
        if self._network.is_cut(*self._link.route(1 - self._side)):
            return
        while self._arriving and self._arriving[0][0] <= self._loop.time() + 1e-9:
            _, frame = self._arriving.popleft()
            self._deliver(frame)

    def _deliver(self, frame: bytes | None) -> None:
        self._loop.trace.record(
            self._loop.time(), "deliver", self._link.number, self._side, len(frame or b""), data=frame or b""
        )
        if self._lost is None and self.owner.alive:
            self._inbox.append(frame)
            _wake(self._reader)
        else:
            self._unread_bytes -= len(frame or b"")

    def drop_arriving(self, keep: int = 0) -> None:
        """Loses the last frames under way, all but `keep`."""
        while len(self._arriving) > keep:
            self._unread_bytes -= len(self._arriving.pop()[1] or b"")

    def lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            _wake(self._reader)
            _wake(self._window)

    def die(self, *, silently: bool = False) -> None:
        """Its process was killed: what it had sent arrives or not, then the other end sees the end, or notices the
        silence."""
        self._lost = "its process is dead"
        other = self._other
        other.drop_arriving(keep=self._network.random.randrange(len(other._arriving) + 1))
        self._network.forget(self._link)
        if silently or self._network.is_cut(*self._link.route(self._side)):
            self._loop.call_in_world(self._network.random.uniform(*DEAD_PEER_S), other.lose, "no sign of life")
        else:
            other.on_the_way(None)
            # A cut that begins before this arrives holds it back, and no `mend` finds this connection any more.
            self._loop.call_in_world(DEAD_PEER_S[1], other.lose, "no sign of life")


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class SimListener:
    """`txnwire.ports.Listener`."""

    def __init__(self, network: Network, owner: ProcessLife, address: str, handler: ConnectionHandler) -> None:
        self._network = network
        self.owner = owner
        self._address = address
        self._handler = handler
        self._serving: dict[asyncio.Task[None], StreamConnection] = {}
        self._closed = False

    @property
    def address(self) -> str:
        return self._address

    @property
    def host(self) -> str:
        return self._address.rpartition(":")[0]

    def accept(self, stream: SimStream, peer: str) -> None:
        """Called by the network, in this listener's process."""
        if self._closed:
            stream.abort(None)
            return
        loop = self._network.loop
        connection = StreamConnection(stream, peer)
        task = loop.create_task(self._serve(connection))
        self._serving[task] = connection
        task.add_done_callback(self._served)

    async def _serve(self, connection: StreamConnection) -> None:
        try:
            await self._handler(connection)
        finally:
            await connection.close()

    def _served(self, task: asyncio.Task[None]) -> None:
        del self._serving[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._network.loop.call_exception_handler({"message": "connection handler failed", "exception": error})

    async def close(self, grace_s: float = 1.0) -> None:
        self._closed = True
        self._network.stop_listening(self)
        for connection in tuple(self._serving.values()):
            await connection.close()
        if self._serving:
            await asyncio.wait(tuple(self._serving), timeout=grace_s)
        late = tuple(self._serving)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=grace_s)


class SimTransport:
    """`txnwire.ports.Transport` of one process on one host."""

    def __init__(self, network: Network, owner: ProcessLife, host: str) -> None:
        self._network = network
        self._owner = owner
        self._host = host

    async def connect(self, address: str, *, timeout_s: float) -> StreamConnection:
        """As over TCP: refused at once without a listener, no answer at all behind a cut."""
        host = address.rpartition(":")[0]
        await asyncio.sleep(self._network.delay_s((self._host, host)))
        if not self._network.answers(self._host, host):
            await asyncio.sleep(timeout_s)
            raise ConnectionLost(f"{address}: no connection within {timeout_s:g} s")
        listener = self._network.listener_at(address)
        if listener is None or not listener.owner.alive or not self._owner.alive:
            raise ConnectionLost(f"{address}: connection refused")
        if listener.owner.paused:
            await asyncio.sleep(timeout_s)
            raise ConnectionLost(f"{address}: no connection within {timeout_s:g} s")
        link = self._network.add_link(self._owner, self._host, listener)
        loop = self._network.loop
        peer = f"{self._host}:{self._network.new_port()}"
        loop.call_later(
            self._network.delay_s((self._host, host)),
            listener.accept,
            link.ends[1],
            peer,
            context=loop.context_of(listener.owner),
        )
        return StreamConnection(link.ends[0], address)

    async def listen(self, address: str, handler: ConnectionHandler) -> SimListener:
        host, _, port = address.rpartition(":")
        if host != self._host:
            raise InvalidArgument(f"cannot listen on {address}: this host is {self._host}")
        bound = f"{host}:{self._network.new_port()}" if port == "0" else address
        if self._network.is_taken(bound):
            raise InvalidArgument(f"cannot listen on {address}: the port is taken")
        listener = SimListener(self._network, self._owner, bound, handler)
        self._network.listen(listener)
        return listener
