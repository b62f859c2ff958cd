"""Acks of one consumed segment: sends the acks of one loop turn together, and sends interrupted ones again.

Sending an ack again is harmless: the cursor only moves forward, and a transaction that acks a message twice has one
pending ack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from txnclient.connection.deadlines import Deadline
from txnclient.connection.links import Link
from txnclient.connection.session import TRANSIENT, Session
from txnclient.consuming.feeds.inbox import Inbox
from txnclient.consuming.received.bits import all_bits
from txnclient.consuming.received.by_segment import by_entry
from txnclient.consuming.received.conflicts import delivered_again
from txnclient.consuming.received.delivered import UpTo
from txnclient.consuming.received.message import Message, ReceivedEntry, Under
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.errors import ConnectionLost, InvalidTxnState, NotAllowed, TxnError, again
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb
from txnwire.turns import turn_size

MAX_POSITIONS = 4000
"""Most positions of one command; a broker accepts at most 10 000."""

MAX_BYTES = 350_000
"""About the most bytes of one command's bitmaps and positions. A transaction stores them as one record of twice that
size; the metadata store accepts a million bytes. A partly acked entry of 100 000 messages has a bitmap of 12 500."""

POSITION_BYTES = 24

EXPIRY_SLACK_S = 30.0
"""How long past its deadline a transaction is taken to be undecided."""

FORGET_FROM = 1024
"""Number of transactions from which expired ones without a name are removed."""

AGAIN_AT_ONCE = 1000
"""Commands that are sent again in one turn of the loop, once there is a connection."""

AGAIN_S = 0.01
"""Pause before the next ones are sent."""

RETRY_S = 0.1
"""Pause before resending an ack that the connected broker could not accept."""


def positions_to_wire(bits: Mapping[Position, int], counts: Mapping[Position, int]) -> list[pb.AckPosition]:
    """Bitmaps by entry, and how many messages each entry has."""
    return [
        pb.AckPosition(
            ledger_id=position.ledger_id,
            entry_id=position.entry_id,
            indexes=b"" if named == all_bits(counts[position]) else named.to_bytes(counts[position] + 7 >> 3, "little"),
            count=counts[position],
        )
        for position, named in bits.items()
    ]


class AckBatch:
    """Gathers acks of one transaction (or of none) and one count of seeks into one command."""

    __slots__ = (
        "answered", "bits", "bytes", "counts", "cumulative", "deadline", "epoch", "sent", "txn", "under", "under_way",
    )  # fmt: skip

    def __init__(
        self,
        txn: TransactionImpl | None,
        under: Under | None,
        deadline: Deadline,
        answered: asyncio.Future[None],
        epoch: int,
    ) -> None:
        """`epoch`: the inbox's epoch."""
        self.epoch = epoch
        self.txn = txn
        self.under = under
        self.deadline = deadline
        self.answered = answered
        self.cumulative = False
        self.bits: dict[Position, int] = {}
        self.counts: dict[Position, int] = {}
        self.bytes = 0
        self.under_way = False
        self.sent = False

    @property
    def full(self) -> bool:
        return len(self.bits) >= MAX_POSITIONS or self.bytes >= MAX_BYTES

    def add(self, position: Position, bits: int, count: int) -> None:
        """Add the messages `bits` of an entry of `count` messages."""
        if position not in self.bits:
            self.bytes += POSITION_BYTES + (count >> 3)
            self.counts[position] = count
            self.bits[position] = bits
        else:
            self.bits[position] |= bits

    def command(self, consumer_id: int) -> pb.Command:
        ack = pb.Ack(consumer_id=consumer_id, cumulative=self.cumulative)
        ack.positions.extend(positions_to_wire(self.bits, self.counts))
        if self.txn is not None:
            ack.txnid_most_bits = self.txn.id.most_bits
            ack.txnid_least_bits = self.txn.id.least_bits
            ack.writer = self.txn.writer_id
        return pb.Command(ack=ack)


class AckOwner(Protocol):
    """The feed that the acks belong to."""

    def aborted(self, revision: int) -> None:
        """A transaction that acked messages of this segment was aborted, at that revision."""

    def not_acked(self, bits: Mapping[Position, int], counts: Mapping[Position, int]) -> None:
        """Their ack has failed without the broker's knowledge, so it would not redeliver them."""

    def refused(self, messages: Sequence[Message[Any]]) -> None:
        """The client has refused their ack in a transaction."""


class FeedAcks:
    """Sends the acks of one feed. `attached` and `detached` follow its connection."""

    def __init__(self, session: Session, segment: str, inbox: Inbox, owner: AckOwner, *, subscription: str) -> None:
        self._session = session
        self._subscription = subscription
        self._segment = segment
        self._inbox = inbox
        self._owner = owner
        self._gathering: dict[TransactionImpl | None, AckBatch] = {}
        self._unanswered: dict[AckBatch, None] = {}
        """Closed batches, in order, under way or not."""
        self._unanswered_of: dict[TransactionImpl | None, dict[AckBatch, None]] = {}
        """The same by transaction, because very many may abort at once."""
        self._took_part: dict[TransactionImpl, None] = {}
        self._forget_at = FORGET_FROM
        self._link: Link | None = None
        self._consumer_id = 0
        self._flush_soon: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._closed: TxnError | None = None
        self._when_answered: Callable[[], None] | None = None

    # ---- gathering --------------------------------------------------------------------------------------------------

    def ack(
        self, messages: Sequence[Message[Any]], txn: TransactionImpl | None, deadline: Deadline
    ) -> list[asyncio.Future[None]]:
        """Ack messages of this segment. The futures resolve when the broker has answered; callers may share them, so
        they must not be cancelled."""
        self._check(messages, txn)
        answers: dict[asyncio.Future[None], None] = {}
        for entry, bits in by_entry(messages):
            batch = self._gathered(txn, entry.under, deadline)
            for position in entry.positions:  # ▲ A7: all of a message's entries in one command
                batch.add(position, bits, entry.count)
            answers[batch.answered] = None
        return list(answers)

    def ack_passed(self, positions: Sequence[Position], deadline: Deadline) -> None:
        """Ack pieces that no consumer will ever hand out or ack."""
        if self._closed is not None:
            return
        for position in positions:
            self._gathered(None, self._inbox.under, deadline).add(position, 1, 1)

    def _gathered(self, txn: TransactionImpl | None, under: Under | None, deadline: Deadline) -> AckBatch:
        """A batch that has room for more of these acks."""
        batch = self._gathering.get(txn)
        if batch is not None:
            if batch.under == under and not batch.full:
                return batch
            self._flush()
        batch = self._gathering[txn] = self._batch(txn, under, deadline)
        if self._flush_soon is None:
            self._flush_soon = self._session.loop.call_soon(self._flush)
        return batch

    def ack_cumulative(
        self, message: Message[Any], txn: TransactionImpl | None, deadline: Deadline
    ) -> list[asyncio.Future[None]]:
        """Ack everything of this segment up to and including `message`."""
        self._check((message,), txn)
        return self._ack_up_to(UpTo.of(message), txn, message.entry.under, deadline)

    def ack_up_to(self, up_to: UpTo, txn: TransactionImpl | None, deadline: Deadline) -> list[asyncio.Future[None]]:
        """As `ack_cumulative`, for a message delivered since the last seek that will not be delivered again."""
        return self._ack_up_to(up_to, txn, self._inbox.under, deadline)

    def _ack_up_to(
        self, up_to: UpTo, txn: TransactionImpl | None, under: Under | None, deadline: Deadline
    ) -> list[asyncio.Future[None]]:
        if self._closed is not None:
            raise again(self._closed)
        self._flush()
        named = self._inbox.held_up_to(up_to)
        if named is not None:
            return self._ack_named(named, txn, under, deadline)
        batch = self._batch(txn, under, deadline)
        batch.cumulative = True
        position = up_to.positions[-1]
        batch.add(position, all_bits(up_to.last + 1), up_to.messages)
        self._inbox.cumulative_ack_started(position, batch.bits[position])
        self._is_unanswered(batch)
        self._send(batch)
        return [batch.answered]

    def _ack_named(
        self,
        named: Sequence[tuple[Position, int, int]],
        txn: TransactionImpl | None,
        under: Under | None,
        deadline: Deadline,
    ) -> list[asyncio.Future[None]]:
        answers: dict[asyncio.Future[None], None] = {}
        for position, bits, count in named:
            batch = self._gathered(txn, under, deadline)
            batch.add(position, bits, count)
            answers[batch.answered] = None
        return list(answers)

    def _check(self, messages: Sequence[Message[Any]], txn: TransactionImpl | None) -> None:
        """Raises the error that closed this segment here; `NotAllowed` for a message received under another
        subscription or before a seek; `TxnConflict` for an ack in a transaction of a message delivered again since: the
        transaction may hold both copies and would process it twice."""
        if self._closed is not None:
            raise again(self._closed)
        for entry, bits in by_entry(messages):
            if (refused := self._not_received(entry, bits)) is not None:
                if txn is not None:
                    self._refuse(messages, txn, refused)
                raise refused
            if txn is not None and (again_bits := bits & ~self._inbox.current(entry)):
                conflict = delivered_again(_first_of(entry, again_bits))
                self._refuse(messages, txn, conflict)
                raise conflict

    def _not_received(self, entry: ReceivedEntry, bits: int) -> NotAllowed | None:
        """Why an ack of these messages is void, if it is. `void_but` checks it once the broker has answered."""
        message, under, now = _first_of(entry, bits), entry.under, self._inbox.under
        if under is None or under.subscription != self._subscription:
            by = "a reader" if under is None else f"a consumer of subscription {under.subscription}"
            return NotAllowed(
                f"message {message.id} was received by {by}: subscription {self._subscription} acks only messages "
                "that its own consumers have received"
            )
        # ▲ After a seek no consumer may ack a message that it received before: the messages that the seek went back for
        # would count as consumed without being delivered.
        if now is not None and under.seeks != now.seeks:
            return _void(message.id)
        return None

    def _refuse(self, messages: Sequence[Message[Any]], txn: TransactionImpl, error: TxnError) -> None:
        """▲ The broker never sees this ack, so the client requests redelivery of the current messages when the
        transaction aborts, which is all it can do now, as if they had been acked in it."""
        txn.failed(error)
        txn.involves(self)
        self._took_part[txn] = None
        self._owner.refused(messages)

    def _batch(self, txn: TransactionImpl | None, under: Under | None, deadline: Deadline) -> AckBatch:
        if txn is not None:
            txn.started(self)
            if txn not in self._took_part and (txn.name is not None or len(self._took_part) >= self._forget_at):
                self._forget_expired()
            self._took_part[txn] = None
        return AckBatch(txn, under, deadline, self._session.loop.create_future(), self._inbox.epoch)

    def _forget_expired(self) -> None:
        """Forget transactions whose deadline passed long ago: other clients, or the service, have ended them."""
        now = self._session.clock.monotonic()
        for txn in [txn for txn in self._took_part if txn.expires_at + EXPIRY_SLACK_S < now]:
            del self._took_part[txn]
        self._forget_at = max(FORGET_FROM, 2 * len(self._took_part))

    @property
    def in_named(self) -> bool:
        """Whether messages were acked in a named transaction not known to have ended: other clients may end it."""
        return any(txn.name is not None for txn in self._took_part)

    def _flush(self) -> None:
        if self._flush_soon is not None:
            self._flush_soon.cancel()
            self._flush_soon = None
        gathered, self._gathering = self._gathering, {}
        for batch in gathered.values():
            self._inbox.ack_started(batch.bits)
            self._is_unanswered(batch)
            self._send(batch)

    def _is_unanswered(self, batch: AckBatch) -> None:
        self._unanswered[batch] = None
        self._unanswered_of.setdefault(batch.txn, {})[batch] = None

    def _is_done(self, batch: AckBatch) -> None:
        """Remove the batch, also one that was still gathering."""
        self._unanswered.pop(batch, None)
        batches = self._unanswered_of.get(batch.txn, {})
        batches.pop(batch, None)
        if not batches:
            self._unanswered_of.pop(batch.txn, None)

    # ---- sending ----------------------------------------------------------------------------------------------------

    def _send(self, batch: AckBatch) -> None:
        link = self._link
        if link is None:
            self._retry_later()  # sent when attached again; until then only its deadline is checked
            return
        if link.closed:
            return  # `detached` is on its way
        try:
            answer = link.call_nowait(batch.command(self._consumer_id), timeout_s=batch.deadline.remaining())
        except ConnectionLost:
            return
        except TRANSIENT:
            self._retry_later()
            return
        except TxnError as error:
            self._finish(batch, error)
            return
        batch.under_way = batch.sent = True
        answer.add_done_callback(partial(self._answered, batch))

    def _answered(self, batch: AckBatch, answer: asyncio.Future[pb.Command]) -> None:
        error = ConnectionLost("cancelled") if answer.cancelled() else answer.exception()
        if batch not in self._unanswered:
            return
        batch.under_way = False
        if error is None:
            self._finish(batch, None)
        elif isinstance(error, TRANSIENT) and not batch.deadline.passed:
            self._retry_later()
        elif isinstance(error, TxnError):
            self._finish(batch, error)

    def _retry_later(self) -> None:
        if self._retry is None:
            self._retry = self._session.loop.call_later(RETRY_S, self._send_again)

    def _send_again(self) -> None:
        """Send batches that are not under way, `AGAIN_AT_ONCE` at a time."""
        self._retry = None
        done = 0
        for batch in list(self._unanswered):
            if batch.under_way or batch not in self._unanswered:
                continue
            txn = batch.txn if batch.txn is not None and batch.txn.aborting else None
            ends = txn is not None or batch.deadline.passed
            if not ends and not self._may_send:
                continue
            if done >= turn_size(AGAIN_AT_ONCE):
                self._retry = self._retry or self._session.loop.call_later(AGAIN_S, self._send_again)
                return
            done += 1
            if txn is not None:
                self._withdraw(batch, txn)
            elif ends:
                self._finish(batch, batch.deadline.expired(f"acking messages of segment://{self._segment}"))
            else:
                self._send(batch)
        if self._unanswered and self._link is None:
            self._retry_later()  # only to check deadlines while there is no connection

    @property
    def _may_send(self) -> bool:
        """Whether a connection accepts commands; if not, they are retried."""
        return self._retry is None and self._link is not None and not self._link.closed

    def attached(self, link: Link, consumer_id: int) -> None:
        """The feed is connected (again): send what is unanswered."""
        self._link = link
        self._consumer_id = consumer_id
        self._send_again()

    def detached(self) -> None:
        """The feed's connection is gone; the link fails the pending answers."""
        self._link = None
        if self._unanswered:
            self._retry_later()

    # ---- the end of an ack ------------------------------------------------------------------------------------------

    def _finish(self, batch: AckBatch, error: TxnError | None) -> None:
        self._is_done(batch)
        self._inbox.ack_answered(batch.bits)
        txn = batch.txn
        if error is None:
            if batch.epoch == self._inbox.epoch:  # after a rewind the messages are delivered and acked again
                self._inbox.acked(batch.bits, cumulative=batch.cumulative)
            batch.answered.set_result(None)
        else:
            batch.answered.set_exception(error)
            batch.answered.exception()  # callers retrieve it unless they were cancelled
            if txn is None or not batch.sent:  # a transaction's abort redelivers what was sent in it
                self._owner.not_acked(batch.bits, batch.counts)
        if txn is not None:
            txn.finished(error)
        self._check_answered()

    def when_answered(self, callback: Callable[[], None]) -> None:
        """Call it once, as soon as every ack is answered: perhaps at once."""
        self._flush()
        self._when_answered = callback
        self._check_answered()

    def _check_answered(self) -> None:
        callback = self._when_answered
        if callback is not None and not self._unanswered and not self._gathering:
            self._when_answered = None
            callback()

    def flush(self, txn: TransactionImpl) -> None:
        """As `Participant`: send the gathered acks."""
        if txn in self._gathering:
            self._flush()

    def withdraw(self, txn: TransactionImpl) -> None:
        """As `Participant`: drop acks that are not under way, because the transaction aborts."""
        gathering = self._gathering.pop(txn, None)
        waiting = [batch for batch in self._unanswered_of.get(txn, ()) if not batch.under_way]
        for batch in [gathering, *waiting] if gathering is not None else waiting:
            self._withdraw(batch, txn)

    def _withdraw(self, batch: AckBatch, txn: TransactionImpl) -> None:
        self._is_done(batch)
        self._inbox.ack_answered(batch.bits)
        batch.answered.set_exception(InvalidTxnState(f"transaction {txn.id} was aborted before this was acked"))
        batch.answered.exception()
        if not batch.sent:
            self._owner.not_acked(batch.bits, batch.counts)
        txn.finished(None)
        self._check_answered()

    def void_but(self, under: Under) -> None:
        """Fail acks not received under `under`, which the broker has just named. ▲ An ack from before a seek, even one
        made before any broker was attached, must not be (re)sent: it would ack messages still to come."""
        void = [batch for batch in self._unanswered if batch.under != under]
        for txn, batch in list(self._gathering.items()):
            if batch.under != under:
                del self._gathering[txn]
                void.append(batch)
        for batch in void:
            self._finish(batch, _void(f"{self._segment}@{next(iter(batch.bits), None)}"))

    def ended(self, txn: TransactionImpl, committed: bool, revision: int) -> None:
        """As `Participant`. After an abort its acked messages are delivered again, before anything behind them."""
        if txn in self._took_part:
            del self._took_part[txn]
            if not committed and self._closed is None:
                self._owner.aborted(revision)

    def close(self, error: TxnError) -> None:
        """Fail all unanswered and all later acks with `error`."""
        self._closed = error
        self._link = None
        for handle in (self._flush_soon, self._retry):
            if handle is not None:
                handle.cancel()
        gathered, self._gathering = self._gathering, {}
        for batch in [*gathered.values(), *self._unanswered]:
            self._finish(batch, error)


def _first_of(entry: ReceivedEntry, bits: int) -> Message[Any]:
    return entry.messages([(bits & -bits).bit_length() - 1])[0]


def _void(what: object) -> NotAllowed:
    return NotAllowed(
        f"message {what} was received before a seek of the subscription, or before it was created again under its "
        "name: its ack is void, continue with the messages received from now on"
    )
