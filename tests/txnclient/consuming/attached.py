"""Consumers attached to a scripted broker, and the acks that it has."""

from __future__ import annotations

from typing import Any

import txnclient
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, ScriptedServer
from tests.waiting import until
from txnwire.proto import txn_pb2 as pb

LEFT, RIGHT = SEGMENTS


async def attached(
    cluster: Cluster, client: txnclient.Client, **options: Any
) -> tuple[ScriptedServer, txnclient.Consumer]:
    server = cluster.servers["broker:1"]
    consumer = await client.consumer(TOPIC, "sub", **options)
    await until(lambda: len(server.consumers) == len(SEGMENTS) and len(server.permits) == len(SEGMENTS))
    return server, consumer


def acks(server: ScriptedServer) -> list[pb.Ack]:
    return [command.ack for command in server.commands if command.HasField("ack")]
