"""Sends from one producer to one segment: gathers messages into entries, writes them in order, sends them again.

Once the segment is sealed, its owner reports what it holds; those entries are done, and the producer moves the rest
elsewhere (see `txnclient.producing.channels.moving`). If a seal is undone before the layout shows it, the channel opens
again and goes on.

An entry belongs to one transaction or to none, so each transaction gathers its own. Without an earlier entry under way,
a batch is sent at the end of the loop's turn, so an awaited send never waits for more messages. While an earlier one of
the same transaction (or of none) is under way, messages gather until its answer, a full batch or `linger_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from txnclient.connection.deadlines import Backoff, Deadline
from txnclient.connection.links import Link
from txnclient.connection.moved_segments import MovedSegment
from txnclient.connection.session import TRANSIENT, Session
from txnclient.connection.topic_layout import SegmentInfo
from txnclient.producing.channels.batches import Batch, GatheringBatch, Stored
from txnclient.producing.channels.numbered import NumberedLife
from txnclient.producing.channels.outbox import EntryOutbox
from txnclient.producing.channels.room_on_link import RoomOnLink
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.entry import OutgoingMessage, encode_entry
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    Overloaded,
    ProducerFenced,
    SegmentSealed,
    SequenceGap,
    Timeout,
    TopicNotFound,
    TxnError,
)
from txnwire.ids import MessageId, Position
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MIB

MAX_UNANSWERED_ENTRIES = 1000
MAX_UNANSWERED_BYTES = 8 * MIB
"""Limit of one channel; well below what a segment takes in at once."""

MAX_BATCH_MESSAGES = 10_000
OPEN_TIMEOUT_S = 5.0

_RESEND = (*TRANSIENT, SequenceGap, SegmentSealed)
"""Answers after which an entry is sent again: nothing was done, a predecessor failed, the owner has moved, or the
segment is sealed (opening it again tells what it holds)."""

_OPEN_AGAIN = (*TRANSIENT, TopicNotFound, SegmentSealed, InvalidArgument)
"""Errors after which an opening retries. `InvalidArgument`: the owner's layout, newer or older, lacks the segment."""

_UNKNOWN = pb.SendOk(duplicate=True, entry_id=-1)
"""Stored at an unknown position, as a broker answers it."""


class ChannelOwner(Protocol):
    """The producer a channel belongs to."""

    name: str
    incarnation: int
    compression: pb.Compression
    compression_level: int
    batch_bytes: int
    life: NumberedLife | None
    """Set for a numbered producer."""

    def take_sequence_ids(self, count: int) -> int: ...
    def new_batch(self, txn: TransactionImpl | None) -> GatheringBatch: ...
    def gathers(self, channel: Channel, batch: GatheringBatch, *, later: bool) -> None: ...
    def settled(self, batch: Batch, stored: bool) -> None: ...
    def lost(self, batch: Batch, futures: Sequence[asyncio.Future[MessageId]]) -> None: ...
    def fenced(self, error: TxnError) -> None: ...

    def held_back(self, channel: Channel) -> bool:
        """Whether the channel must not write yet."""

    def move_on(self) -> None:
        """Move the rest out of sealed segments that have answered."""


class Channel:
    """Sends one producer's entries to one segment. Made for the first message; opens at the owner with the first
    entry."""

    def __init__(self, session: Session, owner: ChannelOwner, info: SegmentInfo) -> None:
        self.info = info
        self.segment = info.path
        self.left = False
        """Whether its segment is sealed and its entries were moved: nothing may be added."""
        self._session = session
        self._owner = owner
        self._gathering: dict[TransactionImpl | None, GatheringBatch] = {}
        self._under_way: dict[TransactionImpl | None, int] = {}
        """Closed entries without a final answer."""
        self._outbox: EntryOutbox[Batch] = EntryOutbox()
        self._link: Link | None = None
        self._moved: MovedSegment | None = None
        self._producer_id = 0
        self._opening = False
        self._withdrawing: dict[TransactionImpl | None, None] = {}
        """Transactions that end without their entries waiting here."""
        self._epoch = 0
        """Epoch of the latest owner that has opened it."""
        self._generation = 0
        """Answers to writes of an earlier generation are ignored."""
        self._unanswered_bytes = 0
        self._room = RoomOnLink(session.loop, self._write, self._given_up)
        self._overloaded: Overloaded | None = None
        """The last refusal, until an entry is stored. Meanwhile only one entry is under way, as a probe."""
        self._backoff = Backoff(session.random)
        self.one_large_value = asyncio.Lock()
        """Held while the pieces of a value are taken in: pieces of one producer's values never interleave here."""

    # ---- gathering --------------------------------------------------------------------------------------------------

    def add(
        self, message: OutgoingMessage, size: int, txn: TransactionImpl | None, stored: Stored, deliver_at_ms: int = 0
    ) -> None:
        """Take one message in that `fits`; `stored` ends with its entry. `size`: bytes it takes in the buffer."""
        batch = self._gathering.get(txn)
        if batch is None:
            batch = self._gathering[txn] = self._owner.new_batch(txn)
            batch.deliver_at_ms = deliver_at_ms
            if txn is not None:
                txn.started(self)
            self._owner.gathers(self, batch, later=self._under_way.get(txn, 0) > 0)
        batch.add(message, size, stored)
        if batch.bytes >= self._owner.batch_bytes or len(batch.messages) >= MAX_BATCH_MESSAGES:
            self.close_batch(batch)

    def gathers(self, txn: TransactionImpl | None) -> bool:
        """Whether a batch of this transaction is open here."""
        return txn in self._gathering

    def fits(self, txn: TransactionImpl | None, size: int, deliver_at_ms: int = 0) -> bool:
        """Whether the open batch, if there is one, has room for `size` more bytes, and the same time of delivery."""
        batch = self._gathering.get(txn)
        return batch is None or (batch.bytes + size <= self._owner.batch_bytes and batch.deliver_at_ms == deliver_at_ms)

    def add_whole(self, batch: Batch) -> None:
        """Take a whole batch in, after the messages gathering for its transaction (or none)."""
        self.flush(batch.txn)
        if batch.txn is not None:
            batch.txn.started(self)
        self._leave(batch)

    def close_batch(self, batch: GatheringBatch) -> None:
        """Give the batch its sequence ids and write it as soon as possible; no-op if it is closed already."""
        if self._gathering.get(batch.txn) is batch:
            del self._gathering[batch.txn]
            self._leave(batch)

    def _leave(self, batch: Batch) -> None:
        batch.first = self._owner.take_sequence_ids(batch.count)
        batch.last = batch.first + batch.count - 1
        self._under_way[batch.txn] = self._under_way.get(batch.txn, 0) + 1
        if batch.piece is not None and batch.piece.chunk_id < 0:
            batch.piece = batch.piece._replace(chunk_id=batch.first)
        try:
            batch.entry = encode_entry(
                batch.take_columns(),
                producer=self._owner.name,
                incarnation=self._owner.incarnation,
                sequence_id=batch.first,
                publish_time_ms=self._session.clock.wall_ms(),
                txn_id=batch.txn.id if batch.txn is not None else None,
                writer=batch.txn.writer_id if batch.txn is not None else 0,
                compression=self._owner.compression,
                level=self._owner.compression_level,
                piece=batch.piece,
                numbers=batch.numbers,
                deliver_at_ms=batch.deliver_at_ms,
            )
        except TxnError as error:
            self._fail(batch, error)
            return
        self._outbox.add(batch)
        self._write()

    def flush(self, txn: TransactionImpl | None) -> None:
        """Close the gathering batch of this transaction (None: of none)."""
        batch = self._gathering.get(txn)
        if batch is not None:
            self.close_batch(batch)

    def flush_all(self) -> None:
        for batch in list(self._gathering.values()):
            self.close_batch(batch)

    # ---- writing ----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        link, outbox = self._link, self._outbox
        if link is None or link.closed or outbox.may_reopen:
            self._open_soon()
            return
        # After a refusal one entry goes ahead, or everything would cross the wire again to be refused.
        most = MAX_UNANSWERED_ENTRIES if self._overloaded is None else 1
        while outbox.awaited < most and self._unanswered_bytes < MAX_UNANSWERED_BYTES:
            if link.busy:
                self._room.wait(link)
                return
            if (first := outbox.waiting_first) is not None and first.deadline.passed:
                self._drop_hopeless(self._overloaded)
            following = outbox.next_to_write()
            if following is None:
                break
            batch, predecessor = following
            send = pb.Send(
                producer_id=self._producer_id,
                sequence_id=batch.first,
                count=batch.count,
                previous_sequence_id=predecessor,
                entry=batch.entry,
            )
            if batch.txn is not None:
                send.txnid_most_bits = batch.txn.id.most_bits
                send.txnid_least_bits = batch.txn.id.least_bits
                send.writer = batch.txn.writer_id
            try:
                answer = link.call_nowait(pb.Command(send=send), timeout_s=batch.deadline.remaining())
            except TRANSIENT:
                outbox.interrupt()
                break
            except TxnError as error:
                outbox.settle(batch)
                outbox.break_chain()
                self._fail(batch, error)
                continue
            self._unanswered_bytes += len(batch.entry)
            answer.add_done_callback(partial(self._answered, batch, self._generation))
        if outbox.may_reopen:
            self._open_soon()

    def _given_up(self) -> float | None:
        """While the link has no room: fail what is late. Returns the seconds until the next deadline."""
        return self._time_left() if self._drop_hopeless(self._overloaded) else None

    def _answered(self, batch: Batch, generation: int, answer: asyncio.Future[pb.Command]) -> None:
        error = ConnectionLost("cancelled") if answer.cancelled() else answer.exception()
        if generation != self._generation:
            return
        self._unanswered_bytes -= len(batch.entry)
        if error is None:
            if self._overloaded is not None:
                self._overloaded = None
                self._backoff.reset()
            self._outbox.settle(batch)
            self._stored(batch, answer.result().send_ok)
            self._write()
        elif isinstance(error, _RESEND) and not (isinstance(error, Timeout) and batch.deadline.passed):
            if isinstance(error, Overloaded):
                self._overloaded = error
            self._outbox.interrupt()
        elif isinstance(error, TxnError):
            self._outbox.settle(batch)
            if not isinstance(error, Timeout):
                self._outbox.break_chain()
            self._fail(batch, error)
            if isinstance(error, ProducerFenced):
                return self._owner.fenced(error)
            self._write()  # ▲ C6: what waits behind a full window would wait without end if no answer comes
        if self._outbox.may_reopen:
            self._open_soon()

    def on_producer_closed(self, error: TxnError, last_sequence_id: int) -> None:
        """The broker no longer serves this producer here; the next opening settles the unanswered entries."""
        self.close()  # or the broker would keep its state of us for as long as the connection lives
        if isinstance(error, ProducerFenced):
            self._owner.fenced(error)
            return
        if isinstance(error, SegmentSealed):
            self._sealed(last_sequence_id)
        if len(self._outbox):
            self._open_soon()

    def _sealed(self, last_sequence_id: int) -> None:
        """Sealed: ▲ complete the stored batches, reroute the rest."""
        self._detach()
        for batch in self._outbox.sealed(last_sequence_id):
            self._stored(batch, _UNKNOWN)
        self._owner.move_on()

    def _detach(self) -> None:
        if self._link is not None:
            self._link.producers.pop(self._producer_id, None)
        if self._moved is not None:
            self._moved.stop()
        self._link = self._moved = None
        self._generation += 1
        self._unanswered_bytes = 0
        self._outbox.give_up_answers()

    # ---- opening at the owner ---------------------------------------------------------------------------------------

    def _open_soon(self) -> None:
        if not self._opening and len(self._outbox) and not self._outbox.awaited:
            self._opening = True
            self._session.tasks.start(self._open(), name=f"open producer on {self.segment}", on_failed=self.fail_all)

    async def _open(self) -> None:
        """Open the producer at the segment's owner and go on after the last stored entry."""
        backoff = Backoff(self._session.random)
        last: TxnError | None = self._overloaded
        try:
            if last is not None:
                # An overloaded segment has much to store: an immediate retry would only add load. A random pause keeps
                # its producers out of step.
                await asyncio.sleep(min(self._backoff.next_s(), self._time_left()))
            while self._drop_hopeless(last):
                try:
                    # ▲ S11: nothing is written to a segment before its ancestors have answered.
                    if not self._owner.held_back(self) and await self._open_once():
                        break
                except _OPEN_AGAIN as error:
                    last = error
                except ProducerFenced as error:
                    self._owner.fenced(error)
                    return
                except TxnError as error:
                    self.fail_all(error)
                    return
                if not len(self._outbox):
                    break  # moved elsewhere
                await self._session.directory.wait_change(min(backoff.next_s(), self._time_left()))
        finally:
            self._opening = False
        self._write()

    async def _open_once(self) -> bool:
        """Open once; whether it is open. False if nothing is left, or it is sealed and its stored entries completed."""
        session = self._session
        self._detach()
        deadline = Deadline(session.clock, min(OPEN_TIMEOUT_S, self._time_left()))
        life = self._owner.life
        if life is not None:
            await life.before_open(self.info, deadline)
        link = await session.directory.owner_link(self.segment, deadline)
        if not len(self._outbox):
            return False  # ▲ closed or moved meanwhile: a producer opened now would never be closed
        producer_id = session.next_id()
        command = pb.OpenProducer(
            producer_id=producer_id,
            segment=self.segment,
            name=self._owner.name,
            incarnation=self._owner.incarnation,
            name_epoch=0 if life is None else life.epoch,
        )
        link.producers[producer_id] = self
        self._link, self._producer_id = link, producer_id
        self._moved = MovedSegment(session, self.segment, link, self._open_elsewhere)
        try:
            reply = await link.call(pb.Command(open_producer=command), timeout_s=deadline.remaining())
        except TxnError as error:
            (self.close if isinstance(error, Timeout) else self._detach)()  # ▲ the broker may open it yet
            raise
        if self._link is not link:
            raise ConnectionLost("the producer was closed by the broker as soon as it had been opened")
        opened = reply.open_producer_ok
        if life is not None:
            life.check_opened(opened, self.segment)
        if opened.ownership_epoch < self._epoch and self._outbox.in_doubt:
            # ▲ This is a former owner that does not know it was replaced: because of its report, the client would send
            # entries again that its successor has stored. (In a restored etcd, epochs may go back for good.)
            self._detach()
            raise NotOwner(f"segment://{self.segment} has had another owner since: look it up again")
        self._epoch = opened.ownership_epoch
        if opened.sealed:
            self._sealed(opened.last_sequence_id)
            return False
        for batch in self._outbox.reopened(opened.last_sequence_id):
            self._stored(batch, _UNKNOWN)
        return True

    def _open_elsewhere(self) -> None:
        """Open again if the owner has changed since the last request."""
        if self._moved is not None and self._moved.is_elsewhere:
            self._detach()
            self._open_soon()

    # ---- leaving a sealed segment -----------------------------------------------------------------------------------

    @property
    def in_doubt(self) -> bool:
        """Whether some written entry may or may not be stored here."""
        return self._outbox.in_doubt

    def ask(self) -> None:
        """The layout shows the segment as sealed: ask its current owner what it holds."""
        self._open_elsewhere()
        if self._outbox.may_reopen:
            self._open_soon()

    def give_up_doubtful(self) -> None:
        """▲ The segment has left the layout: entries written there may or may not be stored, so fail them and never
        send them again."""
        self._detach()
        for batch in self._outbox.take_doubtful():
            unknown = (
                f"segment://{self.segment} is no longer a segment of its topic, so whether messages {batch.first} to "
                f"{batch.last} of producer {self._owner.name} are stored there is not known"
            )
            self._fail(batch, OutcomeUnknown(unknown))

    def leave(self) -> list[Batch]:
        """Close it and return all remaining batches, in order, to send elsewhere. None of them may be in doubt; nothing
        can be added afterwards."""
        self.left = True
        self.close()
        batches: list[Batch] = [*self._outbox.clear(), *self._gathering.values()]
        self._gathering.clear()
        self._under_way.clear()
        return batches

    def _time_left(self) -> float:
        """Seconds until the first deadline of an entry."""
        return min((batch.deadline.remaining() for batch in self._outbox), default=0.0)

    def _drop_hopeless(self, last: TxnError | None) -> bool:
        """Fail entries past their deadline, drop those of aborting transactions; whether any are left."""
        for batch in self._outbox.remove(lambda batch: batch.txn is not None and batch.txn.aborting):
            self._withdraw(batch)
        for batch in self._outbox.remove(lambda batch: batch.deadline.passed):
            self._fail(batch, batch.deadline.expired(f"sending to segment://{self.segment}", last))
        return len(self._outbox) > 0

    # ---- the end of an entry ----------------------------------------------------------------------------------------

    def _stored(self, batch: Batch, ok: pb.SendOk) -> None:
        batch.stored(self.segment, Position(ok.ledger_id, ok.entry_id))
        self._settled(batch, None, stored=True)

    def _fail(self, batch: Batch, error: TxnError) -> None:
        self._owner.lost(batch, batch.failed(error))
        self._settled(batch, error, stored=False)

    def _withdraw(self, batch: Batch) -> None:
        if batch.txn is not None:
            batch.withdrawn(batch.txn.withdrawn("send"))
        self._settled(batch, None, stored=False)

    def _settled(self, batch: Batch, error: TxnError | None, *, stored: bool) -> None:
        txn = batch.txn
        if batch.first >= 0:
            left = self._under_way[txn] - 1
            if left:
                self._under_way[txn] = left
            else:
                del self._under_way[txn]
                following = self._gathering.get(txn)
                if following is not None:
                    self.close_batch(following)
        self._owner.settled(batch, stored)
        if txn is not None:
            txn.finished(error)

    def withdraw(self, txn: TransactionImpl) -> None:
        """Drop the unwritten messages of a transaction that ends without them."""
        gathering = self._gathering.pop(txn, None)
        if gathering is not None:
            self._withdraw(gathering)
        if txn in self._under_way:
            if not self._withdrawing:
                self._session.loop.call_soon(self._withdraw_all)
            self._withdrawing[txn] = None

    def _withdraw_all(self) -> None:
        """Withdraw for all transactions that end in one loop turn together: there may be as many as entries to scan."""
        ended, self._withdrawing = self._withdrawing, {}
        for batch in self._outbox.remove(lambda batch: batch.txn in ended):
            self._withdraw(batch)

    def ended(self, txn: TransactionImpl, committed: bool, revision: int) -> None:
        """Nothing to do: a transaction ends only after all its sends here are answered."""

    def fail_all(self, error: TxnError) -> None:
        """Fail everything that is not stored."""
        self._detach()
        gathering = list(self._gathering.values())
        self._gathering.clear()
        for batch in [*self._outbox.clear(), *gathering]:
            self._fail(batch, error)

    def close(self) -> None:
        """Close the producer at the broker, if connected; entries under way go on there, with their answers ignored."""
        link = self._link
        self._detach()
        if link is not None:
            link.push_if_open(pb.Command(close_producer=pb.CloseProducer(producer_id=self._producer_id)))
