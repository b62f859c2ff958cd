"""The queue against a model that knows of each message only who has it, and how often it was given back.

At every step no message is with two consumers, nothing open or aborted is with anybody, and counts are right; at the
end, whatever happened, everything that is not acked comes, and once it is acked nothing is left (nothing is lost).

Leaves out, of the queue: reading uncommitted
(`test_v7_reading_uncommitted_nothing_is_set_aside_and_aborted_ones_are_shown`), writers that do not count
(`test_v8_aborted_is_acked_away_wherever_it_stands`), what comes back uncounted
(`test_what_nobody_has_begun_comes_again_uncounted`), consumers that take entries only whole
(`test_a_consumer_that_cannot_share_gets_whole_entries`), whether a value can still become complete
(`test_a_value_whose_last_piece_waits_for_its_consumer_s_permits_may_complete`), a cursor without room
(`test_the_queue_reads_no_further_than_the_cursor_has_room_for_acks`), the next owner
(`test_the_next_owner_gives_out_the_first_entry_however_full_the_cursor_is`), a seek
(`test_a_seek_makes_it_wait_anew_and_leaves_no_room_taken`), acks of one message in two transactions
(`test_p3_a_second_transaction_conflicts_until_the_first_has_aborted`).
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from segments.log.tail_cache import LargeValueKey
from segments.subscription.queueing.queue import QueueBounds
from tests.segments.queueing import Rig, Taker
from txnwire.ids import Position, TxnId
from watchers.acks import AckPosition, ack_position

Message = tuple[Position, int]


class QueueMachine(RuleBasedStateMachine):
    takers = Bundle("takers")

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(bounds=QueueBounds(places=30, unacked=6, blocks=4))
        self.counts: dict[Message, int] = {}
        self.having: dict[Message, Taker] = {}
        self.acked: dict[Message, None] = {}
        self.pending: dict[TxnId, list[Message]] = {}
        self.acking = iter(range(10**6))
        self.txns = iter(range(1, 10**6))
        self.writing: dict[int, TxnId] = {}
        self.attached: dict[Taker, None] = {}

    # ---- the log

    def txn_of(self, slot: int | None) -> TxnId | None:
        if slot is None:
            return None
        if slot not in self.writing:
            self.writing[slot] = TxnId(2, next(self.txns))
        return self.writing[slot]

    @rule(messages=st.integers(1, 3), slot=st.none() | st.integers(0, 2), later_s=st.just(0) | st.integers(1, 5))
    def append(self, messages: int, slot: int | None, later_s: int) -> None:
        self.rig.append(messages, self.txn_of(slot), later_s=later_s)

    @rule(value=st.integers(0, 2), slot=st.none() | st.integers(0, 1), later_s=st.just(0) | st.integers(1, 5))
    def append_piece(self, value: int, slot: int | None, later_s: int) -> None:
        self.rig.append(1, self.txn_of(slot), large_value=LargeValueKey("p", 1, value, 3), later_s=later_s)

    @rule()
    def roll(self) -> None:
        self.rig.roll()

    @rule(slot=st.integers(0, 2), committed=st.booleans())
    def decide(self, slot: int, committed: bool) -> None:
        txn = self.writing.pop(slot, None)
        if txn is not None:
            self.rig.decide(txn, committed=committed)

    # ---- consumers

    @rule(target=takers, permits=st.integers(0, 10))
    def attach(self, permits: int) -> Taker:
        taker = self.rig.taker(f"t{len(self.attached)}", permits)
        self.attached[taker] = None
        return taker

    @rule(taker=consumes(takers))
    def leave(self, taker: Taker) -> None:
        self.rig.queue.leave(taker)
        del self.attached[taker]
        for message in [message for message, who in self.having.items() if who is taker]:
            self.give_back(message)

    @rule(taker=takers, permits=st.integers(1, 10))
    def permit(self, taker: Taker, permits: int) -> None:
        self.rig.permit(taker, permits)

    @rule(taker=takers, blocked=st.booleans())
    def block(self, taker: Taker, blocked: bool) -> None:
        taker.blocked = blocked
        self.rig.queue.update(taker)

    @rule(steps=st.integers(1, 20))
    def serve(self, steps: int) -> None:
        for _ in range(steps):
            if not self.step():
                break

    def step(self) -> bool:
        went_on = self.rig.step()
        for taker in self.attached:
            for position, index, count in taker.got:
                entry = self.rig.log[position]
                assert entry.txn_id not in self.rig.open
                assert entry.txn_id not in self.rig.aborted
                assert entry.deliver_at_ms <= self.rig.now_s * 1000, "before its time"
                message = position, index
                assert message not in self.having, "with two consumers"
                assert message not in self.acked, "acked already"
                assert all(message not in held for held in self.pending.values()), "pending"
                assert count == self.counts.get(message, 0)
                self.having[message] = taker
            taker.got.clear()
        return went_on

    def give_back(self, message: Message) -> None:
        del self.having[message]
        self.counts[message] = self.counts.get(message, 0) + 1

    # ---- acks and nacks; `pick` chooses among what is out

    def some(self, pick: int, many: int) -> list[Message]:
        out = sorted(self.having)
        return [out[(pick + step) % len(out)] for step in range(min(many, len(out)))] if out else []

    def acks(self, messages: list[Message]) -> list[AckPosition]:
        return [ack_position(position, self.rig.log[position].messages, 1 << index) for position, index in messages]

    @rule(pick=st.integers(0, 50), many=st.integers(1, 5))
    def ack(self, pick: int, many: int) -> None:
        messages = self.some(pick, many)
        self.rig.ack(*self.acks(messages))
        for message in messages:
            del self.having[message]
            self.acked[message] = None

    @rule(pick=st.integers(0, 50), many=st.integers(1, 5))
    def ack_in_transaction(self, pick: int, many: int) -> None:
        messages = self.some(pick, many)
        if messages:
            txn = TxnId(3, next(self.acking) + 1)
            self.rig.ack_in(txn, *self.acks(messages))
            self.pending[txn] = messages
            for message in messages:
                del self.having[message]

    @rule(committed=st.booleans())
    def end_acks(self, committed: bool) -> None:
        for txn in list(self.pending)[:1]:
            messages = self.pending.pop(txn)
            self.rig.end_acks(txn, committed=committed)
            for message in messages:
                if committed:
                    self.acked[message] = None
                else:
                    self.counts[message] = self.counts.get(message, 0) + 1

    @rule(pick=st.integers(0, 50), many=st.integers(1, 5), delay=st.none() | st.integers(1, 3))
    def nack(self, pick: int, many: int, delay: int | None) -> None:
        for message in self.some(pick, many):
            taker = self.having[message]
            due_s = None if delay is None else self.rig.now_s + delay
            self.rig.queue.given_back(self.acks([message]), taker, due_s=due_s)
            self.give_back(message)

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.rig.pass_time(seconds)

    # ---- what always holds

    @invariant()
    def bounded(self) -> None:
        queue = self.rig.queue
        for taker in self.attached:
            assert len(taker.held) == len({position for (position, _), who in self.having.items() if who is taker})
        assert queue.statistics().unacked == len({position for position, _ in self.having})

    def teardown(self) -> None:
        """Everything is decided, everybody acks: all that is visible comes, and then nothing is left."""
        for slot in list(self.writing):
            self.decide(slot, committed=True)
        while self.pending:
            self.end_acks(committed=False)
        for taker in list(self.attached):
            self.leave(taker)
        self.rig.pass_time(100)
        last = self.attach(permits=10**6)
        for _ in range(2 * len(self.rig.log) + 10):
            while self.step():
                pass
            if not self.having:
                break
            self.ack(0, len(self.having))
        visible = {
            (position, index)
            for position, entry in self.rig.log.items()
            if entry.txn_id not in self.rig.aborted
            for index in range(entry.messages)
        }
        assert set(self.acked) == visible
        self.rig.cursor.advance()
        if self.rig.log:
            assert self.rig.cursor.next_unacked(Position(1, 0)) > self.rig.end
        statistics = self.rig.queue.statistics()
        assert (statistics.unacked, statistics.set_aside, statistics.delayed, last.held) == (0, 0, 0, {})
        queue = self.rig.queue
        assert (len(queue._counts), queue._values, len(queue._delays), queue._later) == (0, {}, 0, {})
        assert queue._promised == {}


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
