"""The `Transport` port over gRPC, and every gRPC setting of the project (DESIGN §11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from txnwire.ports import Clock, Connection, Listener

ChannelOption = tuple[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """How a dead peer is noticed: a ping after `ping_after_s` of silence, given up on after `ping_timeout_s`."""

    ping_after_s: float = 5.0
    ping_timeout_s: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of a TLS client: the authority to trust, and for mutual TLS its own certificate and key."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def client_channel_options(*, max_receive_bytes: int, liveness: Liveness) -> list[ChannelOption]:
    """Options for a channel of any client of ours, etcd's too. `max_receive_bytes` -1 is unlimited."""
    raise NotImplementedError


def open_channel(
    address: str, *, tls: TlsFiles | None = None, max_receive_bytes: int = -1, liveness: Liveness = Liveness()
) -> grpc.aio.Channel:
    """A channel with our options (never retries, never shares a subchannel, pings); plain without `tls`."""
    raise NotImplementedError


def channel_credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    """Credentials from PEM files. Raises `InvalidArgument` naming the file that cannot be read."""
    raise NotImplementedError


class GrpcTransport:
    """`ports.Transport` over gRPC: one bidirectional stream `Exchange.Stream` per connection."""

    def __init__(self, clock: Clock, *, liveness: Liveness = Liveness()) -> None:
        raise NotImplementedError

    async def connect(self, address: str, *, timeout_s: float) -> Connection:
        """See `ports.Transport`. A refused connection fails at once, not after `timeout_s`."""
        raise NotImplementedError

    async def listen(self, address: str, handler: Callable[[Connection], Awaitable[None]]) -> Listener:
        """See `ports.Transport`. Raises `InvalidArgument` if the address cannot be bound."""
        raise NotImplementedError
