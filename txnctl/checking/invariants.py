"""The invariants of the records. Each rule takes one `Picture` and yields violations in words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from segments.layout.topology import ACTIVE, SEALED
from txnctl.checking.picture import Picture
from txnstore import keys, records
from txnstore.store import NO_LEASE
from txnwire.ids import TxnId
from txnwire.names import SegmentName

SWEEP_GRACE_MS = 30_000
DELETION_GRACE_MS = 60_000


def unreadable_records(picture: Picture, _: int) -> Iterator[str]:
    yield from picture.unreadable


def every_key_is_known(picture: Picture, _: int) -> Iterator[str]:
    """The prefix holds only our keys: a key that no code reads is a key that no code deletes."""
    for key in picture.unknown:
        yield f"{key} is no key of ours"


def ops_have_headers(picture: Picture, _: int) -> Iterator[str]:
    """Collection deletes a header only when no op key is left (DESIGN §5), so an op without one is an orphan."""
    for txn_id, segment, _subscription in picture.ops:
        if txn_id not in picture.headers:
            yield f"{segment} has op records of {txn_id}, whose header is missing"


def ops_and_indexes_agree(picture: Picture, _: int) -> Iterator[str]:
    """An index key exists exactly while its participant has op records (DESIGN §4)."""
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
        "op records": {segment: None for _, segment, _ in picture.ops},
        "index keys of writes": {segment: None for _, segment in picture.write_index},
        "index keys of acks": {segment: None for _, segment, _ in picture.ack_index},
        "a load sample": picture.loads,
    }
    for what, segments in places.items():
        for segment in segments:
            if segment not in present:
                yield f"{segment} belongs to no topic, but has {what}"


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


def deletions_come_to_an_end(picture: Picture, now_ms: int) -> Iterator[str]:
    """The leader, or the owner of the segments, continues a marked deletion (DESIGN §5)."""
    marked = [(f"topic {path}", topology.record.deleting_ms) for path, topology in picture.topics.items()]
    marked += [
        (f"subscription {name} of {path}", record.deleting_ms) for (path, name), record in picture.subscriptions.items()
    ]
    for what, since_ms in marked:
        if since_ms and now_ms - since_ms > DELETION_GRACE_MS:
            late_s = (now_ms - since_ms) / 1000
            yield f"{what} is being deleted for {late_s:.0f} s: is no broker, or no controller, running?"


def layout_changes_come_to_an_end(picture: Picture, now_ms: int) -> Iterator[str]:
    """The leader finishes a change or gives it up; the segments it names are active until then (DESIGN §8)."""
    for path, topology in picture.topics.items():
        named: dict[int, str] = {}
        for change in topology.record.changes:
            if change.since_ms and now_ms - change.since_ms > DELETION_GRACE_MS:
                late_s = (now_ms - change.since_ms) / 1000
                yield f"{path}: {change.kind} {change.id} is under way for {late_s:.0f} s: is no controller running?"
            for parent in change.parents:
                if parent not in topology.segments or topology.segments[parent].state != ACTIVE:
                    yield f"{path}: the {change.kind} {change.id} names segment {parent}, which is not active"
                if parent in named:
                    yield f"{path}: segment {parent} is named by both {named[parent]} and {change.id}"
                named[parent] = change.id


def sealed_segments_have_seals(picture: Picture, _: int) -> Iterator[str]:
    """The layout changes only once each parent has its seal, at the end of its last ledger (DESIGN §8)."""
    for topology in picture.topics.values():
        for segment_id, path in topology.paths.items():
            record = picture.ledgers.get(path)
            if record is None:
                continue
            if topology.segments[segment_id].state == SEALED and record.sealed is None:
                yield f"{path} is sealed in its topic's layout, and not in /ledger"
            entries = [(info.ledger_id, info.closed_length - 1) for info in record.ledgers if info.closed_length]
            if record.sealed is not None and entries and record.sealed < entries[-1]:
                yield f"{path} is sealed at {record.sealed[0]}:{record.sealed[1]}, and holds more than that"


def drained_keys_say_so_of_sealed_segments(picture: Picture, _: int) -> Iterator[str]:
    """A drained key goes with its subscription, its topic or its segment, and names the end of the seal."""
    for (path, name, segment_id), drained in picture.drained.items():
        topology = picture.topics.get(path)
        where = f"{path}: subscription {name} has drained segment {segment_id}"
        if topology is None or (path, name) not in picture.subscriptions:
            yield f"{where}: there is no such subscription"
        elif segment_id in topology.segments:
            record = picture.ledgers.get(topology.paths[segment_id])
            if topology.segments[segment_id].state != SEALED:
                yield f"{where}, which is not sealed"
            elif record is not None and record.sealed is not None and tuple(drained.end) != tuple(record.sealed):
                yield f"{where} through {drained.end}, but it is sealed at {record.sealed}"
        elif segment_id not in topology.record.pruning:
            yield f"{where}, which is no segment of it"


def keyed_transactions_belong_to_their_holder(picture: Picture, _: int) -> Iterator[str]:
    """A begin writes header and key record together; the next holder aborts open transactions (DESIGN §9)."""
    for txn_id, header in picture.headers.items():
        if header.state != records.OPEN or header.txn_key is None:
            continue
        record = picture.txn_keys.get(keys.txn_key(header.owner, header.txn_key))
        if record is None or record.txn_id != str(txn_id) or record.epoch != header.key_epoch:
            held = "no record" if record is None else f"epoch {record.epoch} with {record.txn_id}"
            yield f"{txn_id} is open under key {header.txn_key!r} at epoch {header.key_epoch}; the key has {held}"


def names_lead_to_their_transactions(picture: Picture, _: int) -> Iterator[str]:
    """A begin writes header and name record together; the name keeps the outcome when the header goes (DESIGN §10)."""
    for txn_id, header in picture.headers.items():
        if header.state == records.OPEN and header.name is not None:
            record = picture.names.get(header.name)
            if record is None or record.txn_id != str(txn_id):
                held = "by nobody" if record is None else f"by {record.txn_id}"
                yield f"{txn_id} is open under the name {header.name!r}, which is held {held}"
    for name, record in picture.names.items():
        if record.outcome is None and TxnId.parse(record.txn_id) not in picture.headers:
            yield f"name {name!r} stands for {record.txn_id}, which has neither a header nor an outcome"


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
    """No watermark, aborted record, mark-delete position or ack lies beyond the end of the closed ledger it names. A
    segment being erased has its ledgers listed as empty before anything else goes."""
    going = picture.going()
    named = [(segment, "watermark", mark.position) for segment, mark in picture.watermarks.items()]
    named += [(segment, f"mark-delete of {name}", mark.position) for (segment, name), mark in picture.marks.items()]
    named += [
        (segment, f"last ack of {name}", (block.ledger_id, last))
        for (segment, name), blocks in picture.blocks.items()
        for block in blocks.values()
        if (last := _last_acked(block)) >= 0
    ]
    named += [
        (segment, f"aborted record of {txn_id}", record.max_position)
        for (segment, txn_id, _), record in picture.aborted.items()
        if record.max_position is not None
    ]
    for segment, what, (ledger_id, entry_id) in named:
        ledgers = {one.ledger_id: one for one in picture.ledgers[segment].ledgers} if segment in picture.ledgers else {}
        ledger = ledgers.get(ledger_id)
        length = ledger.closed_length if ledger is not None else None
        if length is not None and entry_id >= length and segment not in going:
            yield f"{segment}: {what} is at {ledger_id}:{entry_id}, but that ledger ends after {length} entries"


def _last_acked(block: records.CursorBlock) -> int:
    """The highest entry id that a block names, -1 for none."""
    whole = int.from_bytes(bytes.fromhex(block.acked), "little").bit_length()
    named = [entry_id for entry_id, _, _ in block.partial] + ([block.first_entry + whole - 1] if whole else [])
    return max(named, default=-1)


def trims_are_in_order(picture: Picture, _: int) -> Iterator[str]:
    """The first kept position is the first entry of a listed ledger."""
    for segment, record in picture.ledgers.items():
        if record.trimmed_below is None:
            continue
        ledger_id, entry_id = record.trimmed_below
        behind = [info for info in record.ledgers if info.ledger_id >= ledger_id]
        if entry_id or (record.ledgers and not behind and record.sealed is None):
            yield f"{segment} is trimmed below {ledger_id}:{entry_id}, where no ledger of its list begins"


def owners_are_on_leases(picture: Picture, _: int) -> Iterator[str]:
    for segment, record in picture.owners.items():
        if record.lease == NO_LEASE:
            yield f"{segment} has an owner that no lease ends"


RULES: tuple[Callable[[Picture, int], Iterator[str]], ...] = (
    unreadable_records,
    every_key_is_known,
    ops_have_headers,
    ops_and_indexes_agree,
    collected_transactions_have_no_header,
    ids_are_below_their_mark,
    open_transactions_are_within_their_deadline,
    records_belong_to_segments,
    cursors_and_assignments_belong_to_subscriptions,
    deletions_come_to_an_end,
    layout_changes_come_to_an_end,
    sealed_segments_have_seals,
    drained_keys_say_so_of_sealed_segments,
    keyed_transactions_belong_to_their_holder,
    names_lead_to_their_transactions,
    segments_are_assigned_once,
    ledger_lists_are_in_order,
    positions_are_within_ledgers,
    trims_are_in_order,
    owners_are_on_leases,
)


def broken_invariants(picture: Picture, *, now_ms: int) -> list[tuple[str, str]]:
    """All violations as (rule, finding); `now_ms`: epoch milliseconds."""
    return [(rule.__name__, finding) for rule in RULES for finding in rule(picture, now_ms)]
