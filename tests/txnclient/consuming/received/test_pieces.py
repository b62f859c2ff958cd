"""A7: large values put together from their pieces, in whatever company they come."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnclient.consuming.feeds.inbox import Inbox, QueueInbox
from txnclient.consuming.received import pieces as pieces_module
from txnclient.consuming.received.delivered import UpTo
from txnclient.consuming.received.message import Message, ReceivedEntry
from txnwire.entry import OutgoingMessage, Piece, encode_entry
from txnwire.errors import DataCorrupt, Overloaded
from txnwire.ids import Position
from txnwire.protocol import MAX_CHUNKED_BYTES

SEGMENT = "a/b/c/0000-ffff-0"


def entry_of(
    entry_id: int, value: bytes, piece: Piece | None = None, *, producer: str = "p", redeliveries: int = 0
) -> ReceivedEntry:
    raw = encode_entry(
        [OutgoingMessage(value, b"key", {"a": "b"}, 5)],
        producer=producer,
        incarnation=1,
        sequence_id=entry_id,
        publish_time_ms=1,
        piece=piece,
    )
    return ReceivedEntry(SEGMENT, Position(1, entry_id), raw, redeliveries)


def large(first: int, *parts: bytes, chunk_id: int | None = None, producer: str = "p") -> list[ReceivedEntry]:
    """A value whose pieces stand at the entries from `first` on."""
    total = sum(map(len, parts))
    return [
        entry_of(
            first + number,
            part,
            Piece(first if chunk_id is None else chunk_id, number, len(parts), total),
            producer=producer,
        )
        for number, part in enumerate(parts)
    ]


def values_of(messages: Sequence[Message]) -> list[bytes]:
    return [message.data for message in messages]


def take_all(inbox: Inbox) -> list[Message]:
    taken: list[Message] = []
    while messages := inbox.take(1000):
        taken += messages
    return taken


def arrive(inbox: Inbox, *entries: ReceivedEntry) -> None:
    for entry in entries:
        inbox.arrived(entry, b"")


def stream() -> Inbox:
    return Inbox(100, keeps_holds=True)


def test_a_value_is_one_message_with_the_fields_of_its_first_piece() -> None:
    inbox = stream()
    entries = large(7, b"one ", b"two ", b"three")
    arrive(inbox, *entries[:2])
    assert inbox.buffered == 0
    arrive(inbox, entries[2])
    [message] = take_all(inbox)
    assert (message.data, message.key, message.properties, message.event_time_ms) == (
        b"one two three",
        b"key",
        {"a": "b"},
        5,
    )
    assert message.position == Position(1, 7)
    assert message.sequence_id == 7
    assert message.entry.positions == (Position(1, 7), Position(1, 8), Position(1, 9))
    assert message.data is message.data, "joined once"
    assert message.entry.stored_bytes == 13, "by what a batch of `process` is bounded"
    assert bytes(message.entry.block.value_column.offsets) == array("i", (0, 13)).tobytes(), "Arrow's, as of any block"


def test_values_of_several_producers_between_each_other_and_ordinary_messages() -> None:
    inbox = stream()
    a, b = large(0, b"a1", b"a2", b"a3", producer="a"), large(0, b"b1", b"b2", producer="b")
    for number, entry in enumerate([a[0], b[0], entry_of(0, b"plain"), b[1], a[1], a[2]]):
        entry.position = Position(1, number)
        arrive(inbox, entry)
    messages = take_all(inbox)
    assert values_of(messages) == [b"plain", b"b1b2", b"a1a2a3"]
    assert messages[2].entry.positions == (Position(1, 0), Position(1, 4), Position(1, 5))


def test_permits_of_pieces_come_back_at_once() -> None:
    """With fewer permits than pieces a value would otherwise never be whole."""
    inbox = Inbox(2, keeps_holds=True)
    assert inbox.attached() == 2
    granted = 2
    for entry in large(0, *[b"x"] * 50):
        assert granted > 0
        granted -= 1
        arrive(inbox, entry)
        granted += inbox.permits_due()
    assert granted + inbox.buffered <= 2
    assert len(take_all(inbox)) == 1


def test_pieces_without_their_beginning_are_passed_over_and_acked() -> None:
    inbox = stream()
    arrive(inbox, *large(0, b"1", b"2", b"3")[1:], *large(10, b"whole ", b"value"))
    assert values_of(take_all(inbox)) == [b"whole value"]
    assert inbox.take_passed() == [Position(1, 1), Position(1, 2)]
    assert inbox.take_passed() == []


def test_a_value_given_up_by_its_producer_is_passed_over() -> None:
    """READ_UNCOMMITTED sees the pieces that were sent before an abort."""
    inbox = stream()
    arrive(inbox, *large(0, b"1", b"2", b"3")[:2], *large(5, b"next ", b"value"))
    assert values_of(take_all(inbox)) == [b"next value"]
    assert inbox.take_passed() == [Position(1, 0), Position(1, 1)]


def test_a_queue_s_pieces_come_in_any_order() -> None:
    inbox = QueueInbox(100)
    a, b = large(0, b"a1", b"a2", b"a3"), large(10, b"b1", b"b2")
    a[1].redelivery_count = 4
    for entry in (*a, *b):
        entry.holder = inbox
    arrive(inbox, a[2], b[1], a[0], b[0], a[1])
    messages = take_all(inbox)
    assert values_of(messages) == [b"b1b2", b"a1a2a3"]
    assert [message.redelivery_count for message in messages] == [0, 4]
    assert inbox.take_passed() == []
    assert inbox.give_back(messages[1:]) == dict.fromkeys(messages[1].entry.positions, 1)
    assert inbox.give_back(messages[1:]) == {}


def test_what_the_application_holds_is_not_put_together_again_after_a_lost_connection() -> None:
    inbox = stream()
    entries = large(0, b"1", b"2")
    arrive(inbox, *entries)
    assert len(inbox.take(1)) == 1
    inbox.drop_buffer()
    arrive(inbox, *entries, entry_of(2, b"next"))
    assert values_of(take_all(inbox)) == [b"next"]
    inbox.rewound()
    arrive(inbox, *entries)
    assert values_of(take_all(inbox)) == [b"12"]


def test_a_lost_connection_begins_incomplete_values_anew() -> None:
    inbox = stream()
    entries = large(0, b"1", b"2", b"3")
    arrive(inbox, *entries[:2])
    inbox.drop_buffer()
    arrive(inbox, *entries)
    assert values_of(take_all(inbox)) == [b"123"]
    assert inbox.take_passed() == []


@pytest.mark.parametrize("first_whole", ["a", "b"])
def test_a_reader_goes_on_at_the_first_piece_of_whatever_it_has_not_handed_out(first_whole: str) -> None:
    inbox = Inbox(100, keeps_holds=False)
    begun = [large(number, b"1", b"2", producer=producer) for number, producer in enumerate("ab")]
    arrive(inbox, *(pieces[0] for pieces in begun))
    for position, pieces in enumerate(begun if first_whole == "a" else reversed(begun), start=2):
        pieces[1].position = Position(1, position)
        arrive(inbox, pieces[1])
        assert inbox.begun == Position(1, 0)
    take_all(inbox)
    assert inbox.begun is None


def test_values_that_a_lost_connection_drops_and_that_are_passed_over_then_change_no_cumulative_ack() -> None:
    inbox = stream()
    begun = [large(number, b"1", b"2", producer=f"p{number}")[0] for number in range(3)]
    whole = large(10, b"1", b"2") + large(12, b"3", b"4")
    arrive(inbox, *begun, *whole)
    assert inbox.begun == begun[0].position
    inbox.drop_buffer()
    assert inbox.begun is None
    arrive(inbox, *begun, *whole)
    inbox.ended()
    assert inbox.take_passed() == [one.position for one in begun]
    arrive(inbox, entry_of(20, b"behind"))
    *_, last = take_all(inbox)
    assert inbox.held_up_to(UpTo.of(last)) is None


def test_a_value_that_was_handed_out_before_a_seek_into_its_midst_changes_no_cumulative_ack() -> None:
    """▲ It never comes again: kept, it would take its memory for good, too."""
    inbox = stream()
    first, last = large(0, b"1", b"2")
    last.position = Position(1, 2)
    between = entry_of(1, b"between")
    arrive(inbox, first, between, last)
    assert values_of(take_all(inbox)) == [b"between", b"12"]
    inbox.sought()
    arrive(inbox, between)
    [message] = take_all(inbox)
    assert inbox.held_up_to(UpTo.of(message)) is None


def test_a_cumulative_ack_leaves_out_values_that_end_behind_it() -> None:
    inbox = stream()
    a, b = large(0, b"a1", b"a2", b"a3", producer="a"), large(0, b"b1", b"b2", producer="b")
    for number, entry in enumerate([entry_of(0, b"x"), a[0], entry_of(0, b"y"), a[1], b[0], entry_of(0, b"z")]):
        entry.position = Position(1, number)
        arrive(inbox, entry)
    x, y, z = take_all(inbox)
    assert inbox.held_up_to(UpTo.of(x)) is None, "nothing of a value lies before it"
    assert inbox.held_up_to(UpTo.of(z)) == [(Position(1, 0), 1, 1), (Position(1, 2), 1, 1), (Position(1, 5), 1, 1)]
    a[2].position = Position(1, 6)
    arrive(inbox, a[2])
    [whole] = take_all(inbox)
    named = inbox.held_up_to(UpTo.of(y))
    assert named == [(Position(1, 0), 1, 1), (Position(1, 2), 1, 1)], "nor of one that the application holds"
    named = inbox.held_up_to(UpTo.of(whole))
    assert named is not None
    assert sorted(position.entry_id for position, *_ in named) == [0, 1, 2, 3, 5, 6], "all but the piece of b"
    b[1].position = Position(1, 7)
    arrive(inbox, b[1])
    take_all(inbox)
    last = entry_of(8, b"last")
    arrive(inbox, last)
    [message] = take_all(inbox)
    assert inbox.held_up_to(UpTo.of(message)) is None
    inbox.cumulative_ack_started(message.position, 1)
    assert inbox.held_up_to(UpTo.of(message)) is None


@pytest.mark.parametrize("piece", [Piece(0, 2, 2, 10), Piece(0, 0, 1, MAX_CHUNKED_BYTES + 1)], ids=["number", "total"])
def test_a_piece_that_cannot_be_is_corrupt(piece: Piece) -> None:
    with pytest.raises(DataCorrupt, match="not a piece"):
        stream().arrived(entry_of(0, b"x", piece), b"")


def test_a_value_of_another_length_than_promised_is_corrupt() -> None:
    inbox = stream()
    arrive(inbox, entry_of(0, b"1", Piece(0, 0, 2, 99)), entry_of(1, b"2", Piece(0, 1, 2, 99)))
    [message] = take_all(inbox)
    with pytest.raises(DataCorrupt, match="promise 99"):
        _ = message.data


def test_incomplete_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "MAX_INCOMPLETE_BYTES", 1000)
    inbox = stream()
    begun = [large(number * 2, bytes(100), b"", producer=f"p{number}")[0] for number in range(100)]
    with pytest.raises(Overloaded, match="large values"):
        arrive(inbox, *begun)


def test_values_that_are_whole_or_given_up_leave_their_room_to_those_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "MAX_INCOMPLETE_BYTES", 1000)
    inbox = stream()
    for number in range(20):
        arrive(inbox, large(number * 10, bytes(100), b"", chunk_id=number)[0])
        arrive(inbox, *large(number * 10 + 5, b"%d" % number, bytes(100), chunk_id=100 + number))
    assert values_of(take_all(inbox)) == [b"%d" % number + bytes(100) for number in range(20)]
    assert len(inbox.take_passed()) == 20, "of each given-up value its first piece"


@pytest.mark.parametrize("make", [stream, lambda: QueueInbox(100)])
def test_incomplete_values_that_come_again_take_their_room_once(
    make: Callable[[], Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any number of lost connections; and what a queue gives back takes none."""
    monkeypatch.setattr(pieces_module, "MAX_INCOMPLETE_BYTES", 1000)
    inbox = make()
    begun = large(0, bytes(300), b"end")
    for _ in range(10):
        arrive(inbox, begun[0])
        inbox.drop_buffer()
        if isinstance(inbox, QueueInbox):
            arrive(inbox, begun[0])
            assert inbox.take_back(keep=0)[0] == {Position(1, 0): 1}
    arrive(inbox, *begun)
    assert values_of(take_all(inbox)) == [bytes(300) + b"end"]


class _Log:
    """A segment's entries: values of several producers and ordinary messages, as they were interleaved."""

    def __init__(self, random: Random) -> None:
        self.entries: list[ReceivedEntry] = []
        self.expected: list[bytes] = []
        under_way: dict[str, list[ReceivedEntry]] = {}
        for turn in range(random.randint(1, 25)):
            producer = random.choice("abc")
            rest = under_way.get(producer)
            if not rest and random.random() < 0.5:
                parts = [b"%s%d.%d;" % (producer.encode(), turn, n) for n in range(random.randint(2, 4))]
                rest = under_way[producer] = large(1000 + turn, *parts, chunk_id=turn, producer=producer)
                self.expected.append(b"".join(parts))
            self._append(rest.pop(0) if rest else self._plain(turn))
        for rest in under_way.values():
            while rest:
                self._append(rest.pop(0))

    def _plain(self, turn: int) -> ReceivedEntry:
        self.expected.append(b"plain %d" % turn)
        return entry_of(0, b"plain %d" % turn)

    def _append(self, entry: ReceivedEntry) -> None:
        entry.position = Position(1, len(self.entries))
        self.entries.append(entry)


@given(st.integers(0, 2**32))
def test_a7_every_value_comes_whole_and_once_whatever_is_lost_and_acked(seed: int) -> None:
    """A broker that delivers what is not acked from the earliest on, a consumer that loses its connection, acks one by
    one or cumulatively, and crashes, which forgets all but what is acked."""
    random = Random(seed)
    log = _Log(random)
    acked: set[int] = set()
    processed: list[bytes] = []
    inbox, at = stream(), 0
    held: list[Message] = []

    def ack(message: Message) -> None:
        acked.update(position.entry_id for position in message.entry.positions)
        inbox.ack_started(dict.fromkeys(message.entry.positions, 1))
        inbox.ack_answered(dict.fromkeys(message.entry.positions, 1))
        processed.append(message.data)

    while len(acked) < len(log.entries):
        step = random.choice(["deliver"] * 4 + ["take"] * 4 + ["ack"] * 2 + ["cumulative", "lose", "crash"])
        if step == "deliver":
            for _ in range(3):
                while at < len(log.entries) and at in acked:
                    at += 1
                if at < len(log.entries):
                    arrive(inbox, log.entries[at])
                    at += 1
        elif step == "take":
            held += inbox.take(1)
        elif step == "ack" and held:
            ack(held.pop(random.randrange(len(held))))
        elif step == "cumulative" and held:
            index = random.randrange(len(held))
            named = inbox.held_up_to(UpTo.of(held[index]))
            target = held[index].entry.positions[-1].entry_id
            covered = range(target + 1) if named is None else [position.entry_id for position, *_ in named]
            for message in list(held):
                if message.position.entry_id in covered:
                    assert all(position.entry_id in covered for position in message.entry.positions), "never in part"
                    held.remove(message)
                    ack(message)
            acked.update(covered)
        elif step == "lose":
            inbox.drop_buffer()
            at = 0
        elif step == "crash":
            inbox, at, held = stream(), 0, []
        assert inbox.take_passed() == []
    assert sorted(processed) == sorted(log.expected)


@pytest.mark.parametrize("make", [lambda: Inbox(10, keeps_holds=True), lambda: QueueInbox(10)])
def test_a7_of_a_value_whose_end_is_elsewhere_the_pieces_are_passed_over_at_the_end_of_the_segment(
    make: Callable[[], Inbox],
) -> None:
    """Its segment was sealed in the midst of it: all of it was sent anew to another one."""
    inbox = make()
    for piece in [
        *large(0, b"a", b"b", b"c", producer="o")[:2],
        *large(2, b"d", b"e"),
        *large(4, b"f", b"g", producer="q")[:1],
    ]:
        inbox.arrived(piece, b"")
    assert inbox.take_passed() == []
    inbox.ended()
    assert sorted(inbox.take_passed()) == [Position(1, 0), Position(1, 1), Position(1, 4)]
    [whole] = inbox.take(10)
    assert whole.value == b"de"
    inbox.ended()
    assert inbox.take_passed() == []


def test_pieces_of_a_queue_that_disagree_about_their_number_are_damage() -> None:
    """▲ A broker takes each of them. Any other error would end the connection, each time they come."""
    inbox = QueueInbox(10)
    for piece in large(0, b"a", b"b", b"c")[::2]:
        inbox.arrived(piece, b"")
    with pytest.raises(DataCorrupt, match="2 pieces"):
        inbox.arrived(large(0, b"a", b"b")[1], b"")
