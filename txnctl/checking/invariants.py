"""The invariants of the records, each a rule over one `Picture` that yields what breaks it, in words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from txnctl.checking.picture import Picture
from txnstore import keys, records
from txnstore.store import NO_LEASE
from txnwire.names import SegmentName

SWEEP_GRACE_MS = 30_000


def unreadable_records(picture: Picture, _: int) -> Iterator[str]:
    yield from picture.unreadable


def ops_have_headers(picture: Picture, _: int) -> Iterator[str]:
    """Collection deletes a header only when no op key is left (DESIGN §5), so an op without one is an orphan."""
    for txn_id, segment, _subscription in picture.ops:
        if txn_id not in picture.headers:
            yield f"{segment} has op records of {txn_id}, whose header is gone"


def ops_and_indexes_agree(picture: Picture, _: int) -> Iterator[str]:
    """An index key stands exactly while its participant has op records (DESIGN §4)."""
    writes = {(txn_id, segment): None for txn_id, segment, subscription in picture.ops if subscription is None}
    acks = {(txn, segment, sub): None for txn, segment, sub in picture.ops if sub is not None}
    for txn_id, segment in writes:
        if (txn_id, segment) not in picture.write_index:
            yield f"{segment} has write ops of {txn_id} but no index key"
    for txn_id, segment in picture.write_index:
        if (txn_id, segment) not in writes:
            yield f"{segment} has an index key of {txn_id} but no write op"
    for txn_id, segment, subscription in acks:
        if (txn_id, segment, subscription) not in picture.ack_index:
            yield f"{segment}, subscription {subscription}, has ack ops of {txn_id} but no index key"
    for txn_id, segment, subscription in picture.ack_index:
        if (txn_id, segment, subscription) not in acks:
            yield f"{segment}, subscription {subscription}, has an index key of {txn_id} but no ack op"


def collected_transactions_have_no_header(picture: Picture, _: int) -> Iterator[str]:
    for txn_id in picture.headers:
        outcomes = picture.outcomes.get((txn_id.tcid, txn_id.counter // keys.OUTCOMES_PER_BLOCK))
        if outcomes is not None and outcomes.state_of(txn_id.counter) is not None:
            yield f"{txn_id} has an outcome as a collected transaction and a header as well"


def ids_are_below_their_mark(picture: Picture, _: int) -> Iterator[str]:
    """An id at or above the next block could be given out twice."""
    for txn_id in picture.headers:
        block = picture.id_blocks.get(txn_id.tcid)
        if block is None or txn_id.counter >= block.next:
            yield f"{txn_id} was given out, but /txn-seq/{txn_id.tcid:04x} says {block.next if block else 'nothing'}"


def open_transactions_are_within_their_deadline(picture: Picture, now_ms: int) -> Iterator[str]:
    for txn_id, header in picture.headers.items():
        late_ms = now_ms - header.timeout_ms
        if header.state == records.OPEN and late_ms > SWEEP_GRACE_MS:
            yield f"{txn_id} is open {late_ms / 1000:.0f} s past its deadline: is no coordinator running?"


def records_belong_to_segments(picture: Picture, _: int) -> Iterator[str]:
    """A deleted topic leaves no key behind (DESIGN §5)."""
    present = picture.segments()
    places: dict[str, Iterable[str]] = {
        "a ledger list": picture.ledgers,
        "a watermark": picture.watermarks,
        "an owner": picture.owners,
        "aborted records": {segment: None for segment, _, _ in picture.aborted},
        "cursors": {segment: None for segment, _ in picture.cursors},
    }
    for what, segments in places.items():
        for segment in segments:
            if segment not in present:
                yield f"{segment} is no segment of any topic, but has {what}"


def cursors_and_assignments_belong_to_subscriptions(picture: Picture, _: int) -> Iterator[str]:
    for segment, name in picture.cursors:
        topic = SegmentName.from_path(segment).topic.path
        if (topic, name) not in picture.subscriptions:
            yield f"{segment} has cursors of {name}, which is no subscription of {topic}"
    for topic, name in picture.assignments:
        if (topic, name) not in picture.subscriptions:
            yield f"{topic} has an assignment of {name}, which is no subscription of it"
    for topic, name in picture.subscriptions:
        if topic not in picture.topics:
            yield f"subscription {name} belongs to {topic}, which does not exist"


def segments_are_assigned_once(picture: Picture, _: int) -> Iterator[str]:
    for (topic, name), assignment in picture.assignments.items():
        holders: dict[str, str] = {}
        for consumer, segments in assignment.consumers.items():
            for segment in segments:
                if segment in holders:
                    yield f"{topic}/{name}: {segment} is assigned to both {holders[segment]} and {consumer}"
                holders[segment] = consumer


def ledger_lists_are_in_order(picture: Picture, _: int) -> Iterator[str]:
    """Ids rise, only the last ledger may be open, and a sealed segment has none open (DESIGN §7, §8)."""
    for segment, record in picture.ledgers.items():
        ids = [ledger.ledger_id for ledger in record.ledgers]
        if ids != sorted(set(ids)):
            yield f"{segment}: ledger ids do not rise: {ids}"
        still_open = [ledger.ledger_id for ledger in record.ledgers if ledger.closed_length is None]
        if still_open and (still_open != ids[-1:] or record.sealed is not None):
            yield f"{segment}: ledgers {still_open} are open" + (" in a sealed segment" if record.sealed else "")


def positions_are_within_ledgers(picture: Picture, _: int) -> Iterator[str]:
    """Neither a watermark nor an aborted record lies beyond the end of a closed ledger it names."""
    named = [(segment, "watermark", mark.position) for segment, mark in picture.watermarks.items()]
    named += [
        (segment, f"aborted record of {txn_id}", record.max_position)
        for (segment, txn_id, _), record in picture.aborted.items()
        if record.max_position is not None
    ]
    for segment, what, (ledger_id, entry_id) in named:
        ledgers = {one.ledger_id: one for one in picture.ledgers[segment].ledgers} if segment in picture.ledgers else {}
        ledger = ledgers.get(ledger_id)
        length = ledger.closed_length if ledger is not None else None
        if length is not None and entry_id >= length:
            yield f"{segment}: {what} is at {ledger_id}:{entry_id}, but that ledger ends after {length} entries"


def owners_are_on_leases(picture: Picture, _: int) -> Iterator[str]:
    for segment, record in picture.owners.items():
        if record.lease == NO_LEASE:
            yield f"{segment} has an owner that no lease ends"


RULES: tuple[Callable[[Picture, int], Iterator[str]], ...] = (
    unreadable_records,
    ops_have_headers,
    ops_and_indexes_agree,
    collected_transactions_have_no_header,
    ids_are_below_their_mark,
    open_transactions_are_within_their_deadline,
    records_belong_to_segments,
    cursors_and_assignments_belong_to_subscriptions,
    segments_are_assigned_once,
    ledger_lists_are_in_order,
    positions_are_within_ledgers,
    owners_are_on_leases,
)


def broken_invariants(picture: Picture, *, now_ms: int) -> list[tuple[str, str]]:
    """(rule, finding) of everything broken; `now_ms`: epoch milliseconds."""
    return [(rule.__name__, finding) for rule in RULES for finding in rule(picture, now_ms)]
