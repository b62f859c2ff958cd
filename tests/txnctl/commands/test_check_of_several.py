"""Every rule of `txnctl check` names each of several violations, and not the first alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from segments.layout.topology import Topology
from tests.txnctl.commands.test_check import HIGH, LOAD, LOW, NOW_MS, TOPIC, TXN, marked, owner_record, sound
from txnctl.checking.invariants import broken_invariants
from txnctl.checking.picture import Picture
from txnstore.records import (
    AbortedRecord,
    AssignmentRecord,
    CursorBlock,
    CursorMark,
    Drained,
    LayoutChange,
    LedgerInfo,
    LedgerRecord,
    SegmentEntry,
    SubscriptionRecord,
    TopicRecord,
    TxnName,
    Watermark,
)
from txnstore.writes.collection_transitions import Collectable, read_outcomes
from txnwire.ids import TxnId
from txnwire.names import TopicName

OTHER = TxnId(3, 18)
TRAINS = "public/nyc/trains"
TRAIN = f"{TRAINS}/0000-ffff-0"
GONE, ALSO_GONE = f"{TOPIC}/0000-ffff-8", f"{TOPIC}/0000-ffff-9"
DELETING = SubscriptionRecord(type="queue", start={}, deleting_ms=1)

Plant = Callable[[Picture], object]


def closed(*lengths: int) -> LedgerRecord:
    return LedgerRecord(ledgers=[LedgerInfo(ledger_id=n, closed_length=one) for n, one in enumerate(lengths, start=1)])


def trains(*changes: LayoutChange) -> Topology:
    whole = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    record = TopicRecord(epoch=1, next_segment_id=1, segments=[whole], changes=list(changes))
    return Topology(TopicName.from_path(TRAINS), record)


def two_transactions(picture: Picture, **changed: object) -> None:
    for number, txn_id in enumerate((TXN, OTHER)):
        told = {name: f"{value}/{number}" if isinstance(value, str) else value for name, value in changed.items()}
        picture.headers[txn_id] = replace(picture.headers[TXN], **told)


def both_collected(picture: Picture) -> None:
    two_transactions(picture)
    finals = [Collectable(one.counter, True, 4) for one in (TXN, OTHER)]
    picture.outcomes[TXN.tcid, 0] = read_outcomes(TXN.tcid, 0, None).with_finals(finals, NOW_MS)


def acks_beyond_the_end(picture: Picture) -> None:
    """In the second block of the first cursor, which has its last ack of a part of an entry behind another."""
    whole = CursorBlock(ledger_id=1, first_entry=0, acked="01")
    parts = CursorBlock(ledger_id=1, first_entry=0, acked="", partial=[(2, 4, "01"), (10, 4, "01")])
    picture.blocks = {(LOW, "job"): {"1-0": whole, "1-0-1": parts}, (HIGH, "job"): {"1-0-1": parts}}


def left_behind(picture: Picture) -> None:
    """Every kind of record, of two segments that belong to no topic."""
    for segment in (GONE, ALSO_GONE):
        picture.ledgers[segment] = LedgerRecord(ledgers=[])
        picture.watermarks[segment] = Watermark(position=(1, 1))
        picture.owners[segment] = owner_record(lease=7)
        picture.aborted[segment, TXN, None] = AbortedRecord(max_position=None)
        picture.cursors[segment, "job"] = 1
        picture.ops[TXN, segment, None] = 1
        picture.write_index[TXN, segment] = None
        picture.ack_index[TXN, segment, "job"] = None
        picture.loads[segment] = LOAD


KINDS = (
    "a ledger list",
    "a watermark",
    "an owner",
    "aborted records",
    "cursors",
    "op records",
    "index keys of writes",
    "index keys of acks",
    "a load sample",
)

SEVERAL: list[tuple[str, list[Plant], Sequence[str]]] = [
    ("every_key_is_known", [lambda p: p.unknown.extend(["/what", "/that"])], ["/what is no key", "/that is no key"]),
    ("ops_have_headers", [lambda p: p.headers.clear()], [f"{LOW} has op records", f"{HIGH} has op records"]),
    (
        "ops_and_indexes_agree",
        [lambda p: p.ops.update({(TXN, HIGH, None): 1}), lambda p: p.write_index.clear()],
        [f"{LOW} has write ops", f"{HIGH} has write ops"],
    ),
    (
        "ops_and_indexes_agree",
        [lambda p: p.ops.pop((TXN, LOW, None)), lambda p: p.write_index.update({(TXN, HIGH): None})],
        [f"{LOW} has an index key", f"{HIGH} has an index key"],
    ),
    (
        "ops_and_indexes_agree",
        [lambda p: p.ops.update({(TXN, LOW, "job"): 1}), lambda p: p.ack_index.clear()],
        [f"{LOW}, subscription job, has ack ops", f"{HIGH}, subscription job, has ack ops"],
    ),
    (
        "ops_and_indexes_agree",
        [lambda p: p.ops.pop((TXN, HIGH, "job")), lambda p: p.ack_index.update({(TXN, LOW, "job"): None})],
        [f"{LOW}, subscription job, has an index key", f"{HIGH}, subscription job, has an index key"],
    ),
    ("collected_transactions_have_no_header", [both_collected], [str(TXN), str(OTHER)]),
    ("ids_are_below_their_mark", [two_transactions, lambda p: p.id_blocks.clear()], [str(TXN), str(OTHER)]),
    (
        "open_transactions_are_within_their_deadline",
        [lambda p: two_transactions(p, timeout_ms=NOW_MS - 60_000)],
        [str(TXN), str(OTHER)],
    ),
    (
        "records_belong_to_segments",
        [left_behind],
        [f"{segment} belongs to no topic, but has {kind}" for segment in (GONE, ALSO_GONE) for kind in KINDS],
    ),
    (
        "cursors_and_assignments_belong_to_subscriptions",
        [
            lambda p: p.subscriptions.clear(),
            lambda p: p.cursors.update({(LOW, "late"): 1}),
            lambda p: p.assignments.update({(TOPIC, "late"): AssignmentRecord(epoch=1, consumers={})}),
        ],
        [
            f"{HIGH} has cursors of job",
            f"{LOW} has cursors of late",
            f"{TOPIC} has an assignment of job",
            f"{TOPIC} has an assignment of late",
        ],
    ),
    (
        "cursors_and_assignments_belong_to_subscriptions",
        [lambda p: p.subscriptions.update({(TRAINS, name): DELETING for name in ("job", "late")})],
        [f"subscription {name} belongs to {TRAINS}" for name in ("job", "late")],
    ),
    (
        "deletions_come_to_an_end",
        [
            lambda p: p.topics.update({TOPIC: marked(p.topics[TOPIC]), TRAINS: marked(trains())}),
            lambda p: p.subscriptions.update({(TOPIC, name): DELETING for name in ("job", "late")}),
        ],
        [f"topic {TOPIC}", f"topic {TRAINS}", f"subscription job of {TOPIC}", f"subscription late of {TOPIC}"],
    ),
    (
        "layout_changes_come_to_an_end",
        [lambda p: p.topics.update({TRAINS: trains(LayoutChange(id="c", kind="merge", parents=[0, 7]))})],
        [f"{TRAINS}: the merge c names segment 7"],
    ),
    (
        "sealed_segments_have_seals",
        [
            lambda p: p.topics.update({TRAINS: trains()}),
            lambda p: p.ledgers.pop(LOW),  # it had no owner yet: it has no list
            lambda p: p.ledgers.update(dict.fromkeys((HIGH, TRAIN), replace(closed(10, 10), sealed=(2, 4)))),
        ],
        [f"{HIGH} is sealed at 2:4", f"{TRAIN} is sealed at 2:4"],
    ),
    (
        "drained_keys_say_so_of_sealed_segments",
        [lambda p: p.drained.update({(TOPIC, name, 9): Drained(end=(1, 9)) for name in ("job", "gone")})],
        ["subscription job has drained segment 9", "subscription gone has drained segment 9"],
    ),
    (
        "keyed_transactions_belong_to_their_holder",
        [lambda p: two_transactions(p, txn_key="etl")],
        [f"{TXN} is open under key 'etl/0'", f"{OTHER} is open under key 'etl/1'"],
    ),
    (
        "names_lead_to_their_transactions",
        [lambda p: two_transactions(p, name="b"), lambda p: p.names.clear()],
        [f"{TXN} is open under the name 'b/0'", f"{OTHER} is open under the name 'b/1'"],
    ),
    (
        "names_lead_to_their_transactions",
        [lambda p: p.names.update({name: TxnName(v=1, txn_id=str(OTHER)) for name in ("c/1", "c/2")})],
        ["name 'c/1' stands for", "name 'c/2' stands for"],
    ),
    (
        "segments_are_assigned_once",
        [
            lambda p: p.assignments.update(
                {(TOPIC, "late"): AssignmentRecord(epoch=1, consumers={"a": [HIGH], "b": [LOW, HIGH]})}
            )
        ],
        [f"{TOPIC}/late: {HIGH} is assigned to both a and b"],
    ),
    (
        "ledger_lists_are_in_order",
        [
            lambda p: p.ledgers.update({LOW: replace(p.ledgers[LOW], sealed=(2, 0))}),
            lambda p: p.ledgers.update({HIGH: LedgerRecord(ledgers=[LedgerInfo(ledger_id=n) for n in (1, 2)])}),
        ],
        [f"{LOW}: ledgers [2] are open in a sealed segment", f"{HIGH}: ledgers [1, 2] are open"],
    ),
    (
        "positions_are_within_ledgers",
        [
            lambda p: p.ledgers.update(dict.fromkeys((LOW, HIGH), closed(10, 10))),
            lambda p: p.watermarks.update({HIGH: Watermark(position=(2, 10)), LOW: Watermark(position=(1, 11))}),
            lambda p: p.marks.update({(LOW, "job"): CursorMark(position=(2, 11))}),
            lambda p: p.aborted.update({(HIGH, OTHER, None): AbortedRecord(max_position=(1, 12))}),
            acks_beyond_the_end,
        ],
        [
            f"{LOW}: watermark is at 1:11",
            f"{HIGH}: watermark is at 2:10",
            f"{LOW}: mark-delete of job is at 2:11",
            f"{HIGH}: aborted record of {OTHER} is at 1:12",
            f"{LOW}: last ack of job is at 1:10",
            f"{HIGH}: last ack of job is at 1:10",
        ],
    ),
    (
        "trims_are_in_order",
        [lambda p: p.ledgers.update(dict.fromkeys((LOW, HIGH), replace(closed(10), trimmed_below=(9, 0))))],
        [f"{LOW} is trimmed below 9:0", f"{HIGH} is trimmed below 9:0"],
    ),
    (
        "owners_are_on_leases",
        [lambda p: p.owners.update(dict.fromkeys((LOW, HIGH), owner_record(lease=0)))],
        [f"{LOW} has an owner", f"{HIGH} has an owner"],
    ),
]


@pytest.mark.parametrize(("rule", "plants", "told"), SEVERAL)
def test_each_of_several_violations_is_named(rule: str, plants: list[Plant], told: Sequence[str]) -> None:
    picture = sound()
    for plant in plants:
        plant(picture)
    found = [finding for name, finding in broken_invariants(picture, now_ms=NOW_MS) if name == rule]
    assert [one for one in told if not any(one in finding for finding in found)] == [], found


def test_a_list_whose_first_ledger_is_trimmed_and_not_yet_deleted_breaks_nothing() -> None:
    picture = sound()
    picture.ledgers[LOW] = replace(picture.ledgers[LOW], trimmed_below=(2, 0))
    assert broken_invariants(picture, now_ms=NOW_MS) == []


def test_all_segments_of_every_topic_that_is_deleted_are_going() -> None:
    picture = sound()
    picture.topics = {TOPIC: marked(picture.topics[TOPIC]), TRAINS: marked(trains())}
    assert list(picture.going()) == [LOW, HIGH, TRAIN]


def test_segments_of_every_topic_are_present() -> None:
    """▲ A repair would set the files of the others aside."""
    picture = sound()
    picture.topics |= {TRAINS: trains()}
    assert list(picture.segments()) == [LOW, HIGH, TRAIN]
