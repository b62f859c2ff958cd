"""A server that does what a test tells it to: the real serving side over a transport in memory, with the broker's own
rules for what it admits, and faults at chosen places."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import txnclient
from segments.log.sends.dedup import Dedup, DedupVerdict, InFlight
from txnwire.entry import OutgoingMessage, encode_entry, parse_metadata
from txnwire.errors import (
    ConnectionLost,
    DataCorrupt,
    InvalidTxnState,
    NotOwner,
    SegmentSealed,
    TopicNotFound,
    TxnConflict,
    TxnError,
    to_wire,
)
from txnwire.ids import Position, TxnId
from txnwire.numbers import numbers_of, steps_of
from txnwire.ports import Connection
from txnwire.proto import txn_pb2 as pb
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds
from txnwire.transport.serving import Handler, Peer, serve_connection

if TYPE_CHECKING:
    from tests.txnclient.scripted_server import Cluster


TOPIC = "topic://public/default/orders"
SEGMENTS = ("public/default/orders/0000-7fff-0", "public/default/orders/8000-ffff-1")


class Reply:
    """Who waits for a send."""

    def __init__(self, peer: Peer, command: pb.Command) -> None:
        self.peer = peer
        self.request_id = command.request_id
        self.producer_id = command.send.producer_id


class ScriptedServer:
    """One process of the cluster. `seen` counts requests by kind; `commands` keeps them in order."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.roles = ["coordinator", "broker", "controller", "admin"]
        self.seen: Counter[str] = Counter()
        self.commands: list[pb.Command] = []
        self.lose_replies: Counter[str] = Counter()
        """So many requests of a kind are carried out, and then the connection is cut instead of answering."""
        self.cut_behind: Counter[str] = Counter()
        """So many replies of a kind are the last thing that comes over their connection."""
        self.ignore: Counter[str] = Counter()
        """So many requests of a kind are never answered."""
        self.refuse: dict[str, list[TxnError]] = {}
        """Errors to answer the next requests of a kind with, instead of carrying them out."""
        self.hold: dict[str, asyncio.Event] = {}
        """Requests of a kind wait for the event before they are carried out."""
        self.closes_at_first_read: TxnError | None = None
        """What consumers are closed with as soon as they grant permits: their attaching succeeds."""
        self.announced: list[list[TxnId]] = []
        self.dedups: dict[str, Dedup[Reply]] = defaultdict(lambda: Dedup(idle_s=3600))
        self.producers: dict[tuple[Peer, int], tuple[str, int]] = {}
        self.closed_producers: list[int] = []
        self.names: dict[tuple[Peer, int], tuple[str, int]] = {}
        self.epochs: Counter[str] = Counter()
        """Of the ownership of each segment, as this server believes."""
        self.consumers: dict[int, tuple[Peer, pb.Subscribe]] = {}
        self.seeks = 0
        self.permits: Counter[int] = Counter()
        self.assignment = pb.Assignment(topic=TOPIC, epoch=1, segments=SEGMENTS)
        self.registered: list[tuple[Peer, str, int]] = []
        self.members: dict[Peer, pb.JoinSubscription] = {}
        self.followers: dict[Peer, None] = {}
        self.unreadable: dict[str, None] = {}
        """Topics whose records cannot be read."""
        self.layout_followers: dict[Peer, None] = {}
        """Who has asked for the topic's layout."""
        self._frozen: tuple[pb.Cluster, pb.Layout] | None = None
        """What it knows where it is cut off from the store."""
        self.positions: dict[str, Position] = {}
        self.before_times: dict[str, Position] = {}
        self._listener: Any = None
        self._stalled: list[tuple[str, InFlight[Reply], TxnId | None, bytes]] = []
        self.stall_sends = False
        """Admitted entries are neither stored nor failed until `finish_sends`."""

    async def start(self) -> None:
        self._listener = await self.cluster.transport.listen(self.address, self._serve)

    async def stop(self) -> None:
        await self._listener.close()

    async def cut(self) -> None:
        """Every connection to this server is lost."""
        for connection in self.cluster.transport.connections:
            if connection.peer == self.address:
                await connection.close()

    async def _serve(self, connection: Connection) -> None:
        await serve_connection(
            connection,
            [self],
            server_id=self.address,
            roles=self.roles,
            incarnation="1",
            clock=self.cluster.clock,
        )

    def disconnected(self, peer: Peer) -> None:
        self.members.pop(peer, None)
        self.registered = [one for one in self.registered if one[0] is not peer]
        self.followers.pop(peer, None)
        self.layout_followers.pop(peer, None)
        self.consumers = {cid: held for cid, held in self.consumers.items() if held[0] is not peer}

    @property
    def handlers(self) -> Mapping[str, Handler]:
        kinds = (
            "watch_cluster watch_layout new_txn end_txn announce_session create_topic join_subscription "
            "leave_subscription open_producer send close_producer subscribe flow ack nack close_consumer seek "
            "segment_positions admin_request list_topics take_snapshot register_producer take_name"
        )
        return {kind: self._scripted(kind, getattr(self, "_" + kind)) for kind in kinds.split()}

    def _scripted(self, kind: str, handler: Callable[[Peer, pb.Command], pb.Command | None]) -> Handler:
        def handle(peer: Peer, command: pb.Command) -> Any:
            self.seen[kind] += 1
            kept = pb.Command()
            kept.CopyFrom(command)
            self.commands.append(kept)
            if kind in self.hold:
                return self._after(self.hold[kind], peer, kept, kind, handler)
            return self._handle(peer, command, kind, handler)

        return handle

    async def _after(
        self, event: asyncio.Event, peer: Peer, command: pb.Command, kind: str, handler: Callable[..., Any]
    ) -> Any:
        await event.wait()
        return self._handle(peer, command, kind, handler)

    def _handle(self, peer: Peer, command: pb.Command, kind: str, handler: Callable[..., Any]) -> pb.Command | None:
        if self.refuse.get(kind):
            raise self.refuse[kind].pop(0)
        if self.ignore[kind]:
            self.ignore[kind] -= 1
            return None
        if self.lose_replies[kind]:
            self.lose_replies[kind] -= 1
            peer.closed = True  # nothing more is sent
            try:
                handler(peer, command)
            finally:
                peer.closed = False
                peer.disconnect(ConnectionLost("cut by the test"))
            return None
        reply: pb.Command | None = handler(peer, command)
        if reply is not None and self.cut_behind[kind]:
            self.cut_behind[kind] -= 1
            peer.reply(command.request_id, reply)
            peer.disconnect(ConnectionLost("cut by the test"))
            return None
        return reply

    def push_news(self) -> None:
        for peer in self.followers:
            peer.push(pb.Command(cluster=self._known_cluster()))
            if peer in self.layout_followers:
                peer.push(pb.Command(layout=self._known_layout(TOPIC)))

    def cut_off(self, *, stale: bool) -> None:
        """It hears nothing of the cluster's changes any more; `stale`: and says so."""
        self._frozen = self._known_cluster(), self._known_layout(TOPIC)
        self._frozen[0].stale = stale
        self.push_news()

    def hear_again(self) -> None:
        self._frozen = None
        self.push_news()

    def _known_cluster(self) -> pb.Cluster:
        return self.cluster.cluster() if self._frozen is None else self._frozen[0]

    def _known_layout(self, topic: str) -> pb.Layout:
        return self.cluster.layout(topic) if self._frozen is None else self._frozen[1]

    # ---- cluster ----------------------------------------------------------------------------------------------------

    def _watch_cluster(self, peer: Peer, command: pb.Command) -> pb.Command:
        self.followers[peer] = None
        return pb.Command(cluster=self._known_cluster())

    def _watch_layout(self, peer: Peer, command: pb.Command) -> pb.Command:
        if command.watch_layout.topic == TOPIC:
            self.layout_followers[peer] = None
        if command.watch_layout.topic in self.unreadable:
            raise DataCorrupt(f"the record of {command.watch_layout.topic} cannot be read")
        return pb.Command(layout=self._known_layout(command.watch_layout.topic))

    def _register_producer(self, peer: Peer, command: pb.Command) -> pb.Command:
        request, life = command.register_producer, self.cluster.life
        if self.cluster.controller != self.address and not request.over:
            raise NotOwner("this process is not the controller")
        one = (peer, request.topic, request.life)
        if request.over:
            self.registered = [known for known in self.registered if known != one]
        elif request.life in (0, life) and one not in self.registered:
            self.registered.append(one)
        return pb.Command(register_producer_ok=pb.RegisterProducerOk(life=life))

    def _create_topic(self, peer: Peer, command: pb.Command) -> pb.Command:
        return pb.Command(ok=pb.Ok())

    def _list_topics(self, peer: Peer, command: pb.Command) -> pb.Command:
        return pb.Command(names=pb.Names(names=self.cluster.topics))

    def _admin_request(self, peer: Peer, command: pb.Command) -> pb.Command:
        return pb.Command(admin_reply=pb.AdminReply(reply_json='{"v":1}'))

    # ---- transactions -----------------------------------------------------------------------------------------------

    def _new_txn(self, peer: Peer, command: pb.Command) -> pb.Command:
        cluster, request = self.cluster, command.new_txn
        if cluster.coordinators.get(request.tc_id) != self.address:
            raise NotOwner(f"coordinator {request.tc_id} is not here")
        named = cluster.names.get(request.name)
        if named is not None and cluster.states[named] != "ABORTED":
            return pb.Command(new_txn_ok=self._joined(named, request))
        txn_id = cluster.attempts.get(request.attempt)
        if txn_id is None or request.name:
            txn_id = cluster.attempts[request.attempt] = TxnId(request.tc_id, len(cluster.states) + 1)
            cluster.states[txn_id] = "OPEN"
        if request.name:
            cluster.names[request.name] = txn_id
        ok = pb.NewTxnOk(txnid_most_bits=txn_id.most_bits, txnid_least_bits=txn_id.least_bits)
        return pb.Command(new_txn_ok=ok)

    def _joined(self, txn_id: TxnId, request: pb.NewTxn) -> pb.NewTxnOk:
        ok = pb.NewTxnOk(txnid_most_bits=txn_id.most_bits, txnid_least_bits=txn_id.least_bits)
        ok.joined = self.cluster.attempts.get(request.attempt) != txn_id
        if self.cluster.states[txn_id] == "COMMITTED":
            ok.state, ok.revision = pb.TXN_STATE_COMMITTED, self.cluster.decided_at[txn_id]
            ok.note = self.cluster.notes[txn_id]
            if (writers := self.cluster.writers[txn_id]) is not None:
                ok.writers.CopyFrom(pb.WriterList(writers=writers))
        return ok

    def _end_txn(self, peer: Peer, command: pb.Command) -> pb.Command:
        cluster, request = self.cluster, command.end_txn
        txn_id = TxnId.from_bits(request.txnid_most_bits, request.txnid_least_bits)
        wanted = "COMMITTED" if request.action == pb.TXN_ACTION_COMMIT else "ABORTED"
        if cluster.states[txn_id] == "OPEN":
            cluster.revision += 1
            cluster.states[txn_id] = wanted
            cluster.decided_at[txn_id] = cluster.revision
            cluster.writers[txn_id] = list(request.writers.writers) if request.HasField("writers") else None
            cluster.notes[txn_id] = request.note
        if cluster.states[txn_id] != wanted:
            raise InvalidTxnState(f"transaction {txn_id} has {cluster.states[txn_id]}: timeout")
        ok = pb.EndTxnOk(revision=cluster.decided_at[txn_id], note=cluster.notes.get(txn_id, ""))
        if wanted == "COMMITTED" and (writers := cluster.writers[txn_id]) is not None:
            ok.writers.CopyFrom(pb.WriterList(writers=writers))
        if wanted == "COMMITTED" and request.HasField("writers") and list(request.writers.writers) != writers:
            raise InvalidTxnState(f"transaction {txn_id} is COMMITTED already, with another list of writers")
        return pb.Command(end_txn_ok=ok)

    def _announce_session(self, peer: Peer, command: pb.Command) -> pb.Command:
        ids = command.announce_session.open
        self.announced.append([TxnId.from_bits(one.txnid_most_bits, one.txnid_least_bits) for one in ids])
        return pb.Command(ok=pb.Ok())

    # ---- producing --------------------------------------------------------------------------------------------------

    def _open_producer(self, peer: Peer, command: pb.Command) -> pb.Command:
        request = command.open_producer
        if request.segment not in self.cluster.topology.paths.values():
            raise TopicNotFound(f"{TOPIC} has no segment {request.segment}")
        if self.cluster.owners[request.segment] != self.address:
            raise NotOwner(f"{request.segment} is not here")
        if request.segment in self.cluster.sealed:
            last = self.dedups[request.segment].last_sequence_id(request.name, request.incarnation)
            ok = pb.OpenProducerOk(last_sequence_id=last, ownership_epoch=self.epochs[request.segment], sealed=True)
            return pb.Command(open_producer_ok=ok)
        if request.name_epoch:
            self.dedups[request.segment].numbered.expect(request.name, request.name_epoch, request.incarnation)
        connected = self.dedups[request.segment].connect(request.name, request.incarnation, 0.0)
        self.producers[peer, request.producer_id] = (request.segment, connected.token)
        self.names[peer, request.producer_id] = (request.name, request.incarnation)
        last, epoch = connected.last_sequence_id, self.epochs[request.segment]
        opened = pb.OpenProducerOk(last_sequence_id=last, ownership_epoch=epoch, numbered=request.name_epoch > 0)
        return pb.Command(open_producer_ok=opened)

    def _take_name(self, peer: Peer, command: pb.Command) -> pb.Command:
        request, names = command.take_name, self.dedups[command.take_name.segment].numbered
        if not names.take(request.name, request.name_epoch, request.incarnation, 0.0):
            return pb.Command(take_name_ok=pb.TakeNameOk(name_epoch=names.epoch_of(request.name)))
        known, sealed = names.known(request.name), request.segment in self.cluster.sealed
        told = pb.TakeNameOk(taken=True, sealed=sealed, all_below=known.all_below, id_steps=steps_of(known.ids))
        return pb.Command(take_name_ok=told)

    def tell_sealed(self, path: str) -> None:
        """Every producer that is open there hears of the seal."""
        error = to_wire(SegmentSealed(f"{path} is sealed"))
        for (peer, producer_id), (segment, _) in list(self.producers.items()):
            if segment == path:
                del self.producers[peer, producer_id]
                last = self.dedups[path].last_sequence_id(*self.names[peer, producer_id])
                push = pb.ProducerClosed(producer_id=producer_id, error=error, last_sequence_id=last)
                peer.push(pb.Command(producer_closed=push))

    def _close_producer(self, peer: Peer, command: pb.Command) -> pb.Command | None:
        self.closed_producers.append(command.close_producer.producer_id)
        return pb.Command(ok=pb.Ok())

    def _send(self, peer: Peer, command: pb.Command) -> pb.Command | None:
        send = command.send
        if (peer, send.producer_id) not in self.producers:
            raise SegmentSealed("this producer was closed: its segment is sealed")
        segment, token = self.producers[peer, send.producer_id]
        if segment in self.cluster.sealed:
            raise SegmentSealed(f"{segment} is sealed")
        if self.cluster.owners[segment] != self.address:
            raise NotOwner(f"{segment} is not here")
        reply = Reply(peer, command)
        admission = self.dedups[segment].admit(token, send.sequence_id, send.count, send.previous_sequence_id, reply)
        if admission.verdict is DedupVerdict.STORED:
            ok = pb.SendOk(producer_id=send.producer_id, duplicate=True)
            return pb.Command(send_ok=ok)
        txn_id = TxnId.from_bits(send.txnid_most_bits, send.txnid_least_bits) if send.txnid_least_bits else None
        if admission.verdict is DedupVerdict.NEW and admission.entry is not None:
            self._stalled.append((segment, admission.entry, txn_id, send.entry))
            if not self.stall_sends:
                self.finish_sends()
        return None

    @property
    def stalled(self) -> int:
        """Entries admitted and not stored yet."""
        return len(self._stalled)

    def drop_stalled(self) -> None:
        """What has been admitted fails, and nobody is told: as if its owner had crashed."""
        stalled, self._stalled = self._stalled, []
        for segment, entry, *_ in stalled:
            self.dedups[segment].failed(entry)

    def finish_sends(self, most: int | None = None) -> None:
        """Store what has been admitted (so many at most), or fail it if its transaction is not open."""
        stalled, self._stalled = self._stalled[:most], [] if most is None else self._stalled[most:]
        for segment, entry, txn_id, data in stalled:
            if entry.failed:
                continue
            dedup = self.dedups[segment]
            if txn_id is not None and self.cluster.states[txn_id] != "OPEN":
                for failed in dedup.failed(entry):
                    error: TxnError = TxnConflict(f"transaction {txn_id} is {self.cluster.states[txn_id]}")
                    if failed is not entry:
                        error = txnclient.SequenceGap("the one before failed")
                    for waiter in failed.waiters:
                        waiter.peer.fail(waiter.request_id, error)
                continue
            log = self.cluster.stored.setdefault(segment, [])
            log.append((entry.first, entry.last, txn_id))
            self.cluster.entries[segment].append(data)
            position = Position(1, len(log) - 1)
            metadata = parse_metadata(data)
            if (numbers := numbers_of(metadata)) is not None:
                dedup.numbered.stored(metadata.producer, metadata.incarnation, numbers, 0.0)
            for waiter in dedup.stored(entry, position, 0.0):
                ok = pb.SendOk(producer_id=waiter.producer_id, ledger_id=1, entry_id=position.entry_id)
                waiter.peer.reply(waiter.request_id, pb.Command(send_ok=ok))

    # ---- consuming --------------------------------------------------------------------------------------------------

    def _join_subscription(self, peer: Peer, command: pb.Command) -> pb.Command:
        request = pb.JoinSubscription()
        request.CopyFrom(command.join_subscription)
        self.members[peer] = request
        return pb.Command(assignment=self._assignment_of(request))

    def _assignment_of(self, request: pb.JoinSubscription) -> pb.Assignment:
        assignment = pb.Assignment()
        assignment.CopyFrom(self.assignment)
        assignment.subscription, assignment.consumer = request.subscription, request.consumer
        return assignment

    def assign(self, *segments: str) -> None:
        """A new assignment for whoever has joined."""
        self.assignment = pb.Assignment(topic=TOPIC, epoch=self.assignment.epoch + 1, segments=segments)
        for peer, request in self.members.items():
            peer.push(pb.Command(assignment=self._assignment_of(request)))

    def _leave_subscription(self, peer: Peer, command: pb.Command) -> pb.Command:
        return pb.Command(ok=pb.Ok())

    def _subscribe(self, peer: Peer, command: pb.Command) -> pb.Command:
        request = pb.Subscribe()
        request.CopyFrom(command.subscribe)
        if self.cluster.owners[request.segment] != self.address:
            raise NotOwner(f"{request.segment} is not here")
        self.consumers[request.consumer_id] = (peer, request)
        return pb.Command(subscribe_ok=pb.SubscribeOk(seeks=self.seeks))

    def _flow(self, peer: Peer, command: pb.Command) -> pb.Command | None:
        self.permits[command.flow.consumer_id] += command.flow.permits
        if self.closes_at_first_read is not None:
            self.consumers.pop(command.flow.consumer_id, None)
            error = to_wire(self.closes_at_first_read)
            closed = pb.ConsumerClosed(consumer_id=command.flow.consumer_id, error=error)
            peer.push(pb.Command(consumer_closed=closed))
        return None

    def _ack(self, peer: Peer, command: pb.Command) -> pb.Command:
        return pb.Command(ok=pb.Ok())

    def _nack(self, peer: Peer, command: pb.Command) -> pb.Command:
        return pb.Command(ok=pb.Ok())

    def _seek(self, peer: Peer, command: pb.Command) -> pb.Command:
        """Its consumers are not closed, as if the push that tells of it were lost."""
        return pb.Command(ok=pb.Ok())

    def _close_consumer(self, peer: Peer, command: pb.Command) -> pb.Command | None:
        self.consumers.pop(command.close_consumer.consumer_id, None)
        return None

    def _segment_positions(self, peer: Peer, command: pb.Command) -> pb.Command:
        at = self.positions.get(command.segment_positions.segment, Position(0, -1))
        position = pb.Position(ledger_id=at.ledger_id, entry_id=at.entry_id)
        answer = pb.SegmentPositionsOk(max_read_position=position, last_confirmed=position)
        before = self.before_times.get(command.segment_positions.segment)
        if command.segment_positions.timestamp_ms and before is not None:
            answer.before_timestamp.CopyFrom(pb.Position(ledger_id=before.ledger_id, entry_id=before.entry_id))
        return pb.Command(segment_positions_ok=answer)

    def _take_snapshot(self, peer: Peer, command: pb.Command) -> pb.Command:
        """Everything up to `positions`, at the revision of now."""
        layout = self.cluster.layout(TOPIC)
        segments = {
            one.path: SegmentBounds(end, end, one.state != "ACTIVE")
            for one in layout.segments
            for end in [self.positions.get(one.path, Position(0, -1))]
        }
        topics = {TOPIC: TopicBounds(layout.epoch, segments)}
        snapshot = Snapshot(revision=max(1, self.cluster.revision), topics=topics)
        return pb.Command(take_snapshot_ok=pb.TakeSnapshotOk(snapshot_json=snapshot.to_json()))

    def consumer_of(self, segment: str) -> int:
        """The id of the consumer attached last to this segment."""
        attached = [cid for cid, (_, request) in self.consumers.items() if request.segment == segment]
        assert attached, f"nobody is attached to {segment}"
        return max(attached)

    def deliver(
        self,
        segment: str,
        entry_id: int,
        *values: bytes,
        skip: bytes = b"",
        redelivery_count: int = 0,
        revision: int = 0,
    ) -> None:
        """Deliver one entry to the consumer attached to a segment."""
        consumer_id = self.consumer_of(segment)
        entry = self.encoded(entry_id, *values)
        delivered = pb.DeliveredEntry(
            ledger_id=1, entry_id=entry_id, entry=entry, skip=skip, redelivery_count=redelivery_count
        )
        push = pb.Command(deliver=pb.Deliver(consumer_id=consumer_id, entries=[delivered], revision=revision))
        self.consumers[consumer_id][0].push(push)

    def encoded(self, entry_id: int, *values: bytes) -> bytes:
        return encode_entry(
            [OutgoingMessage(value) for value in values],
            producer="p",
            incarnation=1,
            sequence_id=entry_id * 100,
            publish_time_ms=1,
        )

    def push_to_consumer(self, segment: str, command: pb.Command) -> None:
        self.consumers[self.consumer_of(segment)][0].push(command)
