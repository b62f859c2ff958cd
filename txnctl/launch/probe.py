"""Asks a cluster over its own protocol whether it serves, as a user's first call would."""

from __future__ import annotations

import asyncio

from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import Timeout, TxnError
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import PROTOCOL_VERSION
from txnwire.transport.calls import Caller
from txnwire.transport.grpc_transport import GrpcTransport

POLL_S = 0.1


def _missing(cluster: pb.Cluster, *, brokers: int, coordinators: int) -> str | None:
    if not cluster.controller_address:
        return "no controller is elected yet"
    if len(cluster.coordinators) < coordinators:
        return f"{len(cluster.coordinators)} of {coordinators} coordinator ids are served"
    if len(cluster.brokers) < brokers:
        return f"{len(cluster.brokers)} of {brokers} brokers are registered"
    return None


async def _ask(address: str, *, brokers: int, coordinators: int) -> str | None:
    clock = SystemClock()
    hello = pb.Hello(
        protocol_version=PROTOCOL_VERSION,
        client_name="txnctl-probe",
        session_id=SystemRandom().getrandbits(128).to_bytes(16, "big"),
    )
    caller = await Caller.open(GrpcTransport(clock), address, hello, clock=clock, on_push=lambda _: None, timeout_s=2.0)
    try:
        reply = await caller.call(pb.Command(watch_cluster=pb.WatchCluster()), timeout_s=2.0)
        return _missing(reply.cluster, brokers=brokers, coordinators=coordinators)
    finally:
        await caller.close()


async def wait_cluster_ready(address: str, *, brokers: int, coordinators: int, timeout_s: float) -> None:
    """Return once the server at `address` knows a controller, all coordinators and `brokers` brokers.

    Raises `Timeout` that says what was still missing.
    """
    missing: str | None = f"no server answers at {address}"
    try:
        async with asyncio.timeout(timeout_s):
            while missing is not None:
                try:
                    missing = await _ask(address, brokers=brokers, coordinators=coordinators)
                except TxnError as error:
                    missing = f"{address}: {error}"
                if missing is not None:
                    await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise Timeout(f"the cluster was not ready after {timeout_s:g} s: {missing}") from None
