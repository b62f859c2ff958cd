"""Takes each entry into a segment: admit, op record, append, sync, ack (DESIGN §7, "The order of a send").

    send ──admit──► [op record] ──in the producer's order──► append ──sync, fence check──► ack, readers wake
                                                             └────── segments.log.sends.appender ──────┘

Producers do not wait for each other, except that one sync serves all gathered entries. No task, timer or await per
entry: op verdicts come back as callbacks, and one loop per segment syncs. `segments.log.sends.send_order` lists
what must be durable before each step ▲, so every transactional entry in a ledger had its op first (DESIGN §6).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from segments.log.ledgers.segment_log import SegmentLog
from segments.log.measures import Measures
from segments.log.room import FreeSpace
from segments.log.sends.appender import Appender
from segments.log.sends.dedup import Dedup, DedupVerdict
from segments.log.sends.op_records import OpRecords
from segments.log.sends.send_order import OP
from segments.log.sends.sending import (
    Budget,
    IncomingEntry,
    Item,
    PipelineEvents,
    ProducerLine,
    SendReply,
    SendsInFlight,
)
from segments.log.settings import BrokerSettings
from segments.log.tail_cache import TailCache
from txnstore.store import KeyValue, MetadataStore
from txnwire.errors import Overloaded, SegmentSealed, SequenceGap, TxnError
from txnwire.ports import Clock
from watchers.visibility import TransactionBuffer


class _HeldBack(NamedTuple):
    """A send that arrived while the segment was being sealed."""

    line: ProducerLine
    token: int
    entry: IncomingEntry
    reply: SendReply


class Pipeline:
    """Moves the sends of one segment from admission to ack. `op_counter`: see `OpRecords`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        settings: BrokerSettings,
        *,
        segment: str,
        epoch: int,
        ledgers: SegmentLog,
        buffer: TransactionBuffer,
        dedup: Dedup[SendReply],
        cache: TailCache,
        budget: Budget,
        room: FreeSpace,
        measures: Measures,
        op_counter: Callable[[], int],
        events: PipelineEvents,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._segment = segment
        self._ledgers = ledgers
        self._dedup = dedup
        self._room = room
        self._in_flight = SendsInFlight(budget)
        self._appender = Appender(
            clock,
            settings,
            segment=segment,
            ledgers=ledgers,
            buffer=buffer,
            dedup=dedup,
            cache=cache,
            measures=measures,
            events=events,
            settled=self._settled,
        )
        self._ops = OpRecords(
            store,
            segment=segment,
            epoch=epoch,
            buffer=buffer,
            measures=measures,
            op_counter=op_counter,
            events=events,
            advance=self._advance,
            fail=self._fail,
        )
        self.gate = self._ops.gate
        self._lines: dict[tuple[str, int], ProducerLine] = {}
        self._refusal: TxnError | None = None
        self._held: list[_HeldBack] | None = None
        """Sends that arrived while the segment is being sealed; None at other times."""
        self._stopped = False

    @property
    def inflight(self) -> int:
        """Number of entries admitted but neither acked nor failed."""
        return self._in_flight.entries

    @property
    def inflight_bytes(self) -> int:
        return self._in_flight.bytes

    @property
    def stored(self) -> int:
        """Entries stored since this broker owns the segment."""
        return self._appender.stored

    @property
    def stored_messages(self) -> int:
        return self._appender.stored_messages

    @property
    def stored_bytes(self) -> int:
        """Bytes of those entries."""
        return self._appender.stored_bytes

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._appender.start()

    def refuse(self, error: TxnError) -> None:
        """Refuse new entries with `error`; entries in flight continue."""
        self._refusal = error

    async def wait_idle(self) -> None:
        await self._in_flight.idle.wait()

    def hold_back(self) -> None:
        """Admit nothing more, but answer nothing yet: keeps new sends, within the bounds for entries in flight, until
        `admit_again`, `refuse_held` or `stop`."""
        if self._held is None:
            self._held = []

    def admit_again(self) -> None:
        """Admit the held sends, in order."""
        held, self._held = self._held, None
        for one in held or ():
            self._in_flight.count(0, -len(one.entry.data))
            try:
                self.send(one.line, one.token, one.entry, one.reply)
            except TxnError as error:
                one.reply.failed(error)

    def refuse_held(self, error: TxnError) -> None:
        """Fail the held sends. ▲ Only once the seal is written: after an earlier answer a producer would continue in
        the children, while this segment may yet continue here."""
        held, self._held = self._held, None
        for one in held or ():
            self._in_flight.count(0, -len(one.entry.data))
            one.reply.failed(error)

    async def seal(self, change_id: str, look: Callable[[], Awaitable[KeyValue | None]]) -> None:
        """See `Appender.seal`; the pipeline must hold back and be idle."""
        await self._appender.seal(change_id, look)

    async def unseal(self, topic: KeyValue) -> None:
        """See `Appender.unseal`."""
        await self._appender.unseal(topic)

    def footer(self) -> bytes:
        """See `Appender.footer`; the pipeline must be idle."""
        return self._appender.footer()

    async def roll(self) -> None:
        """See `Appender.roll`."""
        await self._appender.roll()

    async def checkpoint(self, *, settle: bool = False) -> None:
        """See `Appender.checkpoint`."""
        await self._appender.checkpoint(settle=settle)

    def stop(self, error: TxnError) -> None:
        """Fail everything in flight with `error`, now. Nothing is appended or acked afterwards."""
        if self._stopped:
            return
        self._stopped = True
        self._ops.stop()
        self._refusal = error
        self.refuse_held(error)
        waiting = self._appender.stop() + [item for line in self._lines.values() for item in line.items]
        self._lines.clear()
        self._in_flight.count(-self._in_flight.entries, -self._in_flight.bytes)
        for item in waiting:
            for waiter in item.admitted.waiters:
                waiter.failed(error)

    async def wait_stopped(self) -> None:
        await self._appender.wait_stopped()

    # ---- admit ------------------------------------------------------------------------------------------------------

    def line(self, producer: str, incarnation: int) -> ProducerLine:
        """The line for a new connection of the producer, which must return it by `retire`."""
        key = (producer, incarnation)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = ProducerLine(key)
        line.users += 1
        return line

    def retire(self, line: ProducerLine) -> None:
        """The connection has closed; its entries in flight continue."""
        line.users -= 1
        self._drop_if_unused(line)

    def _drop_if_unused(self, line: ProducerLine) -> None:
        if line.users == 0 and not line.items and self._lines.get(line.key) is line:
            del self._lines[line.key]

    def send(self, line: ProducerLine, token: int, entry: IncomingEntry, reply: SendReply) -> None:
        """Admit one entry; `reply` gets its outcome. Raises the refusal instead, and then never calls `reply`."""
        if self._refusal is not None:
            raise self._refusal
        size = len(entry.data)
        self._check_bounds(size)
        if self._held is not None:
            self._held.append(_HeldBack(line, token, entry, reply))
            self._in_flight.count(0, size)
            return
        if not self._dedup.knows(token, entry.sequence_id):
            # ▲ A repeat must get its outcome: if refused, it would be sent as a new entry, and stored twice.
            self._room.check()
        admission = self._dedup.admit(token, entry.sequence_id, entry.messages, entry.previous, reply)
        if admission.verdict is DedupVerdict.STORED:
            reply.stored(admission.position, duplicate=True)
            return
        if admission.verdict is DedupVerdict.ATTACHED or admission.entry is None:
            return  # ▲ L9: it shares the outcome of the first send
        item = Item(entry, admission.entry, line, self._clock.monotonic())
        line.items.append(item)
        self._in_flight.count(1, size)
        self._room.take(size)
        if entry.txn_id is None:
            self._advance(line)
        else:
            self._ops.start(item, entry.txn_id)

    def _check_bounds(self, size: int) -> None:
        if self._ledgers.sealed:
            raise SegmentSealed(f"{self._segment} is sealed: look up the layout again")
        bound, here = self._settings.segment_inflight_bytes, self._in_flight.bytes
        budget = self._in_flight.budget
        if here + size > bound or budget.bytes + size > budget.max_bytes:
            raise Overloaded(
                f"{self._segment} has {here} bytes in flight (bound {bound}), its broker {budget.bytes} (bound "
                f"{budget.max_bytes}): send again a little later"
            )

    def _settled(self, item: Item) -> None:
        self._in_flight.count(-1, -len(item.entry.data))

    def _advance(self, line: ProducerLine) -> None:
        self._appender.advance(line)
        self._drop_if_unused(line)

    def _fail(self, item: Item, error: TxnError) -> None:
        """▲ Fails the entry and all later ones of its producer: a resend starts again from the first (L8)."""
        for failed in self._dedup.failed(item.admitted):
            why = error
            if failed is not item.admitted:
                why = SequenceGap(f"the entry before sequence id {failed.first} of its producer failed: {error}")
            for waiter in failed.waiters:
                waiter.failed(why)
        items = item.line.items
        while items:
            last = items.pop()
            self._settled(last)
            if last is item:
                break
            if last.durable >= OP and last.entry.txn_id is not None:
                self._ops.settled(last.entry.txn_id, recorded=True)
        self._drop_if_unused(item.line)
