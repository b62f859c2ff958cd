"""Brokers, clients and transactions for tests: real stores, ledgers and services, a transport in memory."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from segments.broker.broker import Broker
from segments.broker.broker_service import BrokerService
from segments.layout.assignment import consumer_id
from segments.layout.directory import Directory
from segments.layout.topology import Topology, create_record
from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerStore
from segments.log.settings import BrokerSettings
from segments.subscription.subscriptions import SEEK_BITS
from tests.segments.brokering_clients import CALL_S, Consumer, Producer, Received
from tests.segments.memory_transport import MemoryTransport
from tests.waiting import until_answer
from txnstore import keys, records
from txnstore.records import AssignmentRecord, Header, SubscriptionRecord
from txnstore.store import Commit, Delete, MetadataStore, Put, Read, absent, unchanged_since, version_is
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import SegmentSealed, from_wire
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import TopicName
from txnwire.ports import Clock, Connection, Random
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.calls import Caller
from txnwire.transport.serving import serve_connection

TOPIC = TopicName("public", "nyc", "flights")
FAR_AWAY_MS = 4_000_000_000_000

MakeStore = Callable[[], Awaitable[MetadataStore]]


@dataclass
class Node:
    """One broker process: what it owns, and what it would take down with it."""

    broker: Broker
    service: BrokerService
    directory: Directory
    store: MetadataStore
    ledgers: LedgerStore
    address: str
    _stop: Callable[[bool], Awaitable[None]]

    async def close(self) -> None:
        await self._stop(True)

    async def crash(self) -> None:
        """Gone without a word: nothing handed over, its lease left to expire."""
        await self._stop(False)


@dataclass
class Cluster:
    """Brokers over one store and one ledger directory; transactions are begun and ended straight in the store."""

    make_store: MakeStore
    store: MetadataStore
    data_dir: Path
    settings: BrokerSettings = field(default_factory=lambda: BrokerSettings(lease_ttl_s=2.0, claim_retry_s=0.05))
    make_ledgers: Callable[[Path], LedgerStore] = FileLedgerStore
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=SystemRandom)
    transport: MemoryTransport = field(default_factory=MemoryTransport)
    nodes: list[Node] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    _counters: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _addresses: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def create_topic(self, topic: TopicName = TOPIC, segments: int = 1) -> list[str]:
        """Segment paths, in hash order."""
        record = create_record(segments, policies={}, created_ms=1)
        await self.store.commit(Commit(puts=(Put(keys.topic(topic.path), records.encode(record)),)))
        return list(Topology(topic, record).active_paths)

    async def start(self, broker_id: str = "b1", settings: BrokerSettings | None = None) -> Node:
        store = await self.make_store()
        directory = Directory(store, self.clock)
        await directory.start()
        ledgers = self.make_ledgers(self.data_dir)
        address = f"{broker_id}:{next(self._addresses)}"
        broker = Broker(
            store,
            ledgers,
            self.clock,
            self.random,
            settings or self.settings,
            broker_id=broker_id,
            address=address,
            directory=directory,
        )
        try:
            await broker.start()
        except BaseException:
            await directory.close()
            await ledgers.close()
            await store.close()
            raise
        service = BrokerService(broker)

        async def serve(connection: Connection) -> None:
            await serve_connection(
                connection, [service], server_id=broker_id, roles=["broker"], incarnation="1", clock=self.clock
            )

        listener = await self.transport.listen(address, serve)

        async def stop(graceful: bool) -> None:
            if node not in self.nodes:
                return
            self.nodes.remove(node)
            await broker.close(graceful=graceful)
            await listener.close()
            await directory.close()
            await ledgers.close()
            await store.close()

        node = Node(broker, service, directory, store, ledgers, address, stop)
        self.nodes.append(node)
        return node

    async def connect(self, node: Node) -> Client:
        client = Client()
        hello = pb.Hello(client_name="test", session_id=b"s")
        client.caller = await Caller.open(
            self.transport, node.address, hello, clock=self.clock, on_push=client.on_push, timeout_s=CALL_S
        )
        client.connection = self.transport.connections[-1]
        self.clients.append(client)
        return client

    async def close(self) -> None:
        for client in self.clients:
            await client.caller.close()
        for node in list(self.nodes):
            await node.close()

    # ---- transactions -----------------------------------------------------------------------------------------------

    async def begin(self) -> TxnId:
        txn_id = TxnId(1, next(self._counters))
        header = Header(state=records.OPEN, timeout_ms=FAR_AWAY_MS, created_ms=1)
        await self.store.commit(
            Commit(compares=(absent(keys.txn(txn_id)),), puts=(Put(keys.txn(txn_id), records.encode(header)),))
        )
        return txn_id

    async def end(self, txn_id: TxnId, state: str, writers: list[str] | None = None) -> int:
        """The decision's revision."""
        header = Header(
            state=state, timeout_ms=FAR_AWAY_MS, created_ms=1, finalized_ms=2, reason="client", writers=writers
        )
        key = keys.txn(txn_id)
        result = await self.store.commit(
            Commit(compares=(version_is(key, 1),), puts=(Put(key, records.encode(header)),), else_reads=(Read(key),))
        )
        assert result.succeeded
        return result.revision

    async def commit(self, txn_id: TxnId, writers: list[str] | None = None) -> int:
        return await self.end(txn_id, records.COMMITTED, writers)

    async def abort(self, txn_id: TxnId) -> int:
        return await self.end(txn_id, records.ABORTED)

    async def collect(self, txn_id: TxnId) -> None:
        """Delete the header, as collection does once no op of the transaction is left."""
        await self.wait_no_ops(txn_id)
        await self.store.commit(Commit(deletes=(Delete(keys.txn(txn_id)),)))

    async def ops(self, txn_id: TxnId) -> list[bytes]:
        prefix = keys.txn_ops(txn_id)
        found = await self.store.range(prefix, keys.prefix_end(prefix))
        return [record.key for record in found.records]

    async def wait_no_ops(self, txn_id: TxnId, timeout_s: float = 10.0) -> None:
        await until_answer(
            lambda: self.ops(txn_id), lambda left: not left, f"op records of {txn_id} to be deleted", within_s=timeout_s
        )

    # ---- subscriptions ----------------------------------------------------------------------------------------------

    async def create_subscription(
        self, name: str = "sub", topic: TopicName = TOPIC, record: SubscriptionRecord | None = None
    ) -> None:
        record = record or SubscriptionRecord(type="stream", start={"kind": "earliest"})
        await self.store.commit(Commit(puts=(Put(keys.subscription(topic.path, name), records.encode(record)),)))

    async def assign(
        self, consumers: dict[str, list[str]], *, name: str = "sub", epoch: int, topic: TopicName = TOPIC
    ) -> None:
        """`consumers`: `name@incarnation` → segment paths."""
        key = keys.assignment(topic.path, name)
        found = await self.store.get(key)
        record = AssignmentRecord(epoch=epoch, consumers=consumers)
        result = await self.store.commit(
            Commit(
                compares=(unchanged_since(key, found.mod_revision if found else 0),),
                puts=(Put(key, records.encode(record)),),
            )
        )
        assert result.succeeded

    async def subscribe(
        self,
        client: Client,
        segment: str,
        *,
        name: str = "sub",
        consumer: str = "c1",
        epoch: int = 1,
        permits: int = 1000,
    ) -> Consumer:
        """Create the subscription and the assignment if need be, and attach."""
        if await self.store.get(keys.subscription(TOPIC.path, name)) is None:
            await self.create_subscription(name)
        await self.assign({consumer_id(consumer, 7): [segment]}, name=name, epoch=epoch)
        return await client.subscribe(segment, name=name, consumer=consumer, epoch=epoch, permits=permits)

    async def holding_abc(self, client: Client, segment: str) -> tuple[Producer, Consumer]:
        """A producer that has sent "a", "b" and "c", and the consumer that has received them."""
        producer, consumer = await client.producer(segment), await self.subscribe(client, segment)
        for value in "abc":
            await producer.send(value)
        await consumer.wait(*"abc")
        return producer, consumer

    async def queue(
        self,
        client: Client,
        segment: str,
        *,
        name: str = "jobs",
        consumer: str = "c1",
        permits: int = 1000,
        isolation: int = pb.ISOLATION_READ_COMMITTED,
        topic: TopicName = TOPIC,
    ) -> Consumer:
        """Create the queue subscription if need be, and attach one more consumer."""
        if await self.store.get(keys.subscription(topic.path, name)) is None:
            record = SubscriptionRecord(type="queue", start={"kind": "earliest"})
            await self.create_subscription(name, topic, record)
        return await client.subscribe(
            segment,
            name=name,
            consumer=consumer,
            permits=permits,
            type=pb.SUBSCRIPTION_TYPE_QUEUE,
            isolation=isolation,
        )


class Client:
    """One connection, and everything pushed on it."""

    caller: Caller

    def __init__(self) -> None:
        self.consumers: dict[int, Consumer] = {}
        self.producers: dict[int, Producer] = {}
        self._ids = itertools.count(1)

    def on_push(self, command: pb.Command) -> None:
        kind = command.WhichOneof("body")
        body = getattr(command, str(kind))
        if kind == "producer_closed":
            producer = self.producers[body.producer_id]
            producer.closed, producer.closed_last = from_wire(body.error), body.last_sequence_id
        else:
            self.consumers[body.consumer_id].on_push(str(kind), body)

    async def call(self, **body: object) -> pb.Command:
        return await self.caller.call(pb.Command(**body), timeout_s=CALL_S)  # type: ignore[arg-type]

    async def producer(self, segment: str, name: str = "p1", incarnation: int = 1) -> Producer:
        producer = Producer(self, next(self._ids), name, incarnation)
        self.producers[producer.id] = producer
        request = pb.OpenProducer(producer_id=producer.id, segment=segment, name=name, incarnation=incarnation)
        reply = await self.call(open_producer=request)
        if reply.open_producer_ok.sealed:
            raise SegmentSealed(f"{segment} is sealed")
        producer.last = reply.open_producer_ok.last_sequence_id
        return producer

    async def reader(
        self,
        segment: str,
        *,
        start: pb.Start | None = None,
        end: Position | None = None,
        min_revision: int = 0,
        permits: int = 1_000_000,
        isolation: int = pb.ISOLATION_READ_COMMITTED,
        store: str = "",
        trimmed: int = pb.TRIMMED_DATA_BY_START,
        permits_are_kib: bool = False,
    ) -> Consumer:
        consumer = self._consumer()
        request = pb.Subscribe(
            consumer_id=consumer.id,
            segment=segment,
            start=start,
            min_revision=min_revision,
            isolation=isolation,
            store=store,
            trimmed=trimmed,  # type: ignore[arg-type]
            permits_are_kib=permits_are_kib,
        )
        if end is not None:
            request.end.CopyFrom(pb.Position(ledger_id=end.ledger_id, entry_id=end.entry_id))
        await self.call(subscribe=request)
        consumer.flow(permits)
        return consumer

    async def subscribe(
        self,
        segment: str,
        *,
        name: str = "sub",
        consumer: str = "c1",
        incarnation: int = 7,
        epoch: int = 1,
        permits: int = 1000,
        type: int = pb.SUBSCRIPTION_TYPE_STREAM,
        isolation: int = pb.ISOLATION_READ_COMMITTED,
    ) -> Consumer:
        found = self._consumer()
        request = pb.Subscribe(
            consumer_id=found.id,
            segment=segment,
            subscription=name,
            consumer=consumer,
            incarnation=incarnation,
            assignment_epoch=epoch,
            type=type,
            isolation=isolation,
        )
        found.seeks = (await self.call(subscribe=request)).subscribe_ok.seeks % (1 << SEEK_BITS)
        found.flow(permits)
        return found

    def _consumer(self) -> Consumer:
        consumer = Consumer(self, next(self._ids))
        self.consumers[consumer.id] = consumer
        return consumer

    async def close(self) -> None:
        await self.caller.close()


__all__ = ["EARLIEST", "TOPIC", "Client", "Cluster", "Consumer", "Node", "Producer", "Received"]
