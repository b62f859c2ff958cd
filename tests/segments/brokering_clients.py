"""Producers and consumers of a test: what they sent and what was delivered to them, entry by entry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.waiting import until
from txnwire.entry import OutgoingMessage, decode_block, encode_entry
from txnwire.errors import TxnError, from_wire
from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb

if TYPE_CHECKING:
    from tests.segments.brokering import Client

CALL_S = 10.0


class Producer:
    """Sends entries of one producer in order. `last` is the predecessor the next one names."""

    def __init__(self, client: Client, producer_id: int, name: str, incarnation: int) -> None:
        self.client = client
        self.id = producer_id
        self.name = name
        self.incarnation = incarnation
        self.last = -1
        self.closed: TxnError | None = None
        self.closed_last: int | None = None
        """What its `ProducerClosed` says is stored."""

    def command(
        self,
        *values: str,
        txn: TxnId | None = None,
        writer: int = 0,
        sequence_id: int | None = None,
        previous: int | None = None,
        publish_time_ms: int = 1,
        deliver_at_ms: int = 0,
    ) -> pb.Command:
        first = self.last + 1 if sequence_id is None else sequence_id
        send = pb.Send(
            producer_id=self.id,
            sequence_id=first,
            count=len(values),
            previous_sequence_id=self.last if previous is None else previous,
            txnid_most_bits=txn.most_bits if txn else 0,
            txnid_least_bits=txn.least_bits if txn else 0,
            writer=writer,
            entry=encode_entry(
                [OutgoingMessage(value.encode()) for value in values],
                producer=self.name,
                incarnation=self.incarnation,
                sequence_id=first,
                publish_time_ms=publish_time_ms,
                txn_id=txn,
                writer=writer,
                deliver_at_ms=deliver_at_ms,
            ),
        )
        self.last = first + len(values) - 1
        return pb.Command(send=send)

    def send_nowait(self, *values: str, txn: TxnId | None = None, **ids: int) -> asyncio.Future[pb.Command]:
        command = self.command(*values, txn=txn, **ids)
        return self.client.caller.call_nowait(command, timeout_s=CALL_S)

    async def send(self, *values: str, txn: TxnId | None = None, **ids: int) -> Position:
        reply = (await self.send_nowait(*values, txn=txn, **ids)).send_ok
        return Position(reply.ledger_id, reply.entry_id)


@dataclass(frozen=True)
class Received:
    value: str
    position: Position
    index: int
    count: int
    redelivery_count: int


class Consumer:
    """Everything delivered to one consumer. A Rewind drops what has been delivered before it, as a client would."""

    def __init__(self, client: Client, consumer_id: int) -> None:
        self.client = client
        self.id = consumer_id
        self.messages: list[Received] = []
        self.all: list[Received] = []
        self.rewinds = 0
        self.seeks = 0
        self.ended: str | None = None
        self.closed: TxnError | None = None
        self.revision = 0
        """Of what was delivered last."""

    @property
    def values(self) -> list[str]:
        return [message.value for message in self.messages]

    def on_push(self, kind: str, body: object) -> None:
        if isinstance(body, pb.Deliver):
            for entry in body.entries:
                self._take(entry)
            self.revision = body.revision
        elif isinstance(body, pb.EndOfSegment):
            self.ended = "sealed" if body.sealed else "end"
        elif isinstance(body, pb.ConsumerClosed):
            self.closed = from_wire(body.error)
        elif isinstance(body, pb.Rewind):
            self.rewinds += 1
            self.messages.clear()
        else:
            raise AssertionError(f"unexpected push {kind}")

    def _take(self, entry: pb.DeliveredEntry) -> None:
        block = decode_block(entry.entry)
        skip = int.from_bytes(entry.skip, "little")
        position = Position(entry.ledger_id, entry.entry_id)
        for index in range(len(block)):
            if not skip >> index & 1:
                one = Received(block.value(index).decode(), position, index, len(block), entry.redelivery_count)
                self.messages.append(one)
                self.all.append(one)

    def flow(self, permits: int, min_revision: int = 0) -> None:
        flow = pb.Flow(consumer_id=self.id, permits=permits, min_revision=min_revision)
        self.client.caller.push(pb.Command(flow=flow))

    def take(self) -> list[Received]:
        """What has been delivered; it is forgotten here."""
        taken, self.messages = self.messages, []
        return taken

    async def wait(self, *values: str, timeout_s: float = 10.0) -> None:
        """Until exactly these have been delivered since the last rewind."""
        try:
            await until(lambda: len(self.values) >= len(values), within_s=timeout_s)
        except AssertionError:
            raise AssertionError(f"delivered {self.values}, expected {list(values)}") from None
        assert self.values == list(values)

    async def ack(
        self,
        *what: Received | Position,
        txn: TxnId | None = None,
        cumulative: bool = False,
        writer: int = 0,
        indexes: Iterable[int] | None = None,
    ) -> None:
        """Whole entries by position, single messages as received, or `indexes` of the entry of one."""
        command = self.ack_command(what, txn=txn, cumulative=cumulative, writer=writer, indexes=indexes)
        await self.client.caller.call(command, timeout_s=CALL_S)

    def ack_command(
        self,
        what: Sequence[Received | Position],
        *,
        txn: TxnId | None,
        cumulative: bool = False,
        writer: int = 0,
        indexes: Iterable[int] | None = None,
    ) -> pb.Command:
        positions = []
        for one in what:
            if isinstance(one, Received):
                chosen = [one.index] if indexes is None else list(indexes)
                if cumulative:
                    chosen = list(range(one.index + 1))
                bits = sum(1 << index for index in chosen)
                positions.append(
                    pb.AckPosition(
                        ledger_id=one.position.ledger_id,
                        entry_id=one.position.entry_id,
                        indexes=bits.to_bytes((one.count + 7) // 8, "little"),
                        count=one.count,
                    )
                )
            else:
                positions.append(pb.AckPosition(ledger_id=one.ledger_id, entry_id=one.entry_id, count=1))
        return pb.Command(
            ack=pb.Ack(
                consumer_id=self.id,
                cumulative=cumulative,
                positions=positions,
                txnid_most_bits=txn.most_bits if txn else 0,
                txnid_least_bits=txn.least_bits if txn else 0,
                writer=writer,
            )
        )

    async def nack(self, *what: Received | Position, delay_ms: int = 0) -> None:
        positions = self.ack_command(what, txn=None).ack.positions
        await self.client.call(nack=pb.Nack(consumer_id=self.id, positions=positions, delay_ms=delay_ms))

    async def close(self) -> None:
        await self.client.call(close_consumer=pb.CloseConsumer(consumer_id=self.id))
