"""The tables of bounds, fixed waits and least settings in docs/operations.md have the numbers of the code."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

import txnclient
import txnctl.commands.shared.asking as asking
from coordinator_v5.settings import CoordinatorSettings, NameSettings
from segments.controller import membership
from segments.layout import layout_service, layout_transitions, topics, topology
from segments.ledger import file_ledger
from segments.log.settings import BrokerSettings
from segments.subscription.cursors import acks_around
from segments.subscription.cursors.cursor import Cursor
from tests.project.test_documentation import ROOT
from txnclient.connection import any_server, links, moved_segments, topic_changes
from txnclient.consuming import assigned_feeds
from txnclient.consuming import membership as client_membership
from txnclient.consuming.feeds import pace
from txnclient.consuming.places import seeking
from txnclient.consuming.received import pieces
from txnclient.producing import outgoing, producer_impl
from txnclient.producing.channels import channel
from txnclient.reading import cuts
from txnclient.transactions import coordinators, transaction_impl
from txnctl.admin import admin_arguments
from txnctl.commands.shared import lines
from txnctl.process import founding, name_settings, serve
from txnctl.process.settings import ServerSettings
from txnstore.writes import writer_lists
from txnwire import bounds, compression, names, protocol
from txnwire.errors import InvalidArgument
from watchers.acks import BLOCK_ENTRIES

SECTION = (ROOT / "docs" / "operations.md").read_text().split("\n## Bounds\n")[1].split("\n## ")[0]
ROWS = {
    what: (bound, then) for what, bound, then in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", SECTION, re.MULTILINE)
}
BROKER, COORDINATOR = BrokerSettings(), CoordinatorSettings()
SERVER = {name: field.default for name, field in ServerSettings.model_fields.items()}


def number(count: float) -> str:
    return f"{count:,}".replace(",", " ") if isinstance(count, int) else f"{count:g}"


def mib(size: int) -> str:
    assert size % protocol.MIB == 0
    return f"{size // protocol.MIB} MiB"


def seconds(wait: float) -> str:
    return f"{wait:g} s"


BOUNDS = {
    "connections of a server": ("Overloaded", [number(SERVER["max_connections"])]),
    "open transactions": (
        "Overloaded",
        [number(SERVER["max_open_transactions"]), f"the {SERVER['tcids']} coordinator"],
    ),
    "transactions whose deadline or client has passed": ("", [f"{COORDINATOR.swept_at_once} aborts"]),
    "sent to a segment, not stored yet": (
        "Overloaded",
        [mib(BROKER.segment_inflight_bytes), number(BROKER.broker_inflight_bytes // protocol.MIB)],
    ),
    "unstored messages of a producer": ("WouldBlock", ["64 MiB"]),
    "read ahead for consumers, or queued to them": (
        "",
        [
            mib(BROKER.connection_pending_bytes + BROKER.read_bytes + BROKER.deliver_bytes),
            f"{BROKER.broker_deliveries_bytes // protocol.MIB} of a broker",
        ],
    ),
    "newest entries in memory": ("", [mib(BROKER.tail_cache_bytes), number(BROKER.broker_cache_bytes // protocol.MIB)]),
    "waiting for a peer that reads nothing at all": ("", [mib(protocol.MAX_PENDING_BYTES)]),
    "unanswered requests of a connection": ("Overloaded", [number(protocol.MAX_OUTSTANDING_REQUESTS)]),
    "consumers of a subscription": ("Overloaded", [number(membership.MAX_CONSUMERS)]),
    "topics that one connection follows": ("Overloaded", [number(layout_service.MAX_TOPICS_PER_CONNECTION)]),
    "entries acked in part, of a subscription in a segment": ("Overloaded", [mib(BROKER.partial_acks_bytes)]),
    "acks of a stream beyond its first unacked entry": (
        "Overloaded",
        [f"{Cursor.__init__.__kwdefaults__['max_blocks']} ranges of {number(acks_around.BLOCK_ENTRIES)}"],
    ),
    "positions of one ack": ("InvalidArgument", [number(BROKER.max_ack_positions), number(bounds.MAX_ACK_POSITIONS)]),
    "pieces of large values that are not complete, of a consumer": ("Overloaded", [mib(pieces.MAX_INCOMPLETE_BYTES)]),
    "segments of a topic": (
        "NotAllowed",
        [f"{topology.MAX_SEGMENTS_AT_CREATION} when", f"{number(layout_transitions.MAX_SEGMENTS)} in all"],
    ),
    "the value of a message": ("MessageTooLarge", [mib(protocol.MAX_VALUE_BYTES), mib(protocol.MAX_CHUNKED_BYTES)]),
    "a message with key and properties": (
        "MessageTooLarge",
        [f"5 MiB and {outgoing.MAX_MESSAGE_BYTES // protocol.KIB - 5 * protocol.KIB} KiB"],
    ),
    "messages of one entry": ("none", [number(channel.MAX_BATCH_MESSAGES), number(protocol.MAX_ENTRY_MESSAGES)]),
    "one command of the wire": ("MessageTooLarge", [mib(protocol.MAX_COMMAND_BYTES)]),
    "a name of a tenant, namespace, topic, subscription, server": ("InvalidArgument", ["128 characters"]),
    "names of transactions": ("TooManyNames", [f"{number(NameSettings().most)} of a namespace"]),
    "a transaction's name, a transaction key": (
        "InvalidArgument",
        [f"{names.MAX_TXN_NAME_BYTES} bytes", f"{names.MAX_TRANSACTION_KEY_BYTES} bytes"],
    ),
    "a note; an attempt": (
        "InvalidArgument",
        [f"{names.MAX_NOTE_BYTES} bytes; {coordinators.MAX_ATTEMPT_BYTES} bytes"],
    ),
    "writers that a commit lists": (
        "InvalidArgument",
        [number(writer_lists.MAX_LISTED), number(writer_lists.MAX_WRITERS)],
    ),
    "a transaction's timeout": ("InvalidArgument", [number(int(SERVER["max_transaction_timeout_s"]))]),
    "`keep` of a name": ("InvalidArgument", [f"a minute to {number(coordinators.MAX_KEEP.days)} days"]),
    "the time of a message's delivery on queues": (
        "InvalidArgument",
        [f"{timedelta(milliseconds=protocol.MAX_DELAY_MS).days} days"],
    ),
    "what a queue passes in a segment: entries out, set aside or waiting for their time; positions from its oldest "
    "unacked message on": (
        "",
        [number(BROKER.queue_places), number(BROKER.queue_cursor_blocks * BLOCK_ENTRIES)],
    ),
    "a delay of a nack": ("InvalidArgument", [f"{timedelta(milliseconds=protocol.MAX_DELAY_MS).days} days"]),
    "an `ack_timeout`": (
        "InvalidArgument",
        [f"{seconds(assigned_feeds.LEAST_ACK_TIMEOUT_S)} to {timedelta(milliseconds=protocol.MAX_DELAY_MS).days} days"],
    ),
    "`compression_level`": ("InvalidArgument", [f"1 to {compression.MAX_LEVEL}"]),
    "a retention, in ms or bytes": ("InvalidArgument", [f"2^{topics.MAX_LIMIT.bit_length() - 1}"]),
    "topics of one snapshot, names in one request": ("InvalidArgument", [number(bounds.MAX_NAMES)]),
    "a line of `txnctl produce`": ("exit code 2", [mib(lines.MAX_LINE_BYTES)]),
    "rows of a listing (`--limit`)": ("InvalidArgument", [number(admin_arguments.MAX_ROWS)]),
}
WAITS = {
    "a client for a connection": [links.CONNECT_TIMEOUT_S],
    "a client for one answer of a coordinator, of the controller": [
        coordinators.ATTEMPT_TIMEOUT_S,
        any_server.CALL_TIMEOUT_S,
    ],
    "a client for the answer to a change of a topic or subscription, a split, a merge, a seek": [
        topic_changes.CALL_TIMEOUT_S,
        seeking.CALL_TIMEOUT_S,
    ],
    "`abort` as a client or a block ends, and what a closing client still settles": [transaction_impl.ABORT_ON_CLOSE_S],
    "`close` of a producer for its sends": [producer_impl.CLOSE_TIMEOUT_S],
    "`leave` of a consumer that closes": [client_membership.LEAVE_TIMEOUT_S],
    "a request for a segment that is being taken over": [BROKER.recover_wait_s],
    "a request for the watch to reach a revision": [BROKER.follow_wait_s],
    "a seek for open transactions that hold acks": [BROKER.seek_wait_s],
    "a segment that is to be sealed for what is in flight": [BROKER.seal_wait_s],
    "one try of a snapshot": [cuts.SNAPSHOT_TIMEOUT_S],
    "a look at what waits in a queue's consumer that shares the queue": [pace.PERIOD_S],
    "the sweep of deadlines": [COORDINATOR.sweep_s],
    "a new cluster for room in a full etcd": [founding.PATIENCE_S],
    "a broker that is stopped for what is in flight": [BROKER.hand_over_s],
    "a ledger store that closes for its jobs at a disk that hangs": [file_ledger.CLOSE_TIMEOUT_S],
    "a process that has stopped for other threads at a disk that hangs": [serve.THREADS_END_S],
    "a client for the former owner of a segment to say that it has moved": [moved_segments.MOVED_S],
    "`txnctl` for a connection; for an answer": [asking.CONNECT_TIMEOUT_S, asking.CALL_TIMEOUT_S],
}


def test_every_row_is_compared_and_no_row_is_missing() -> None:
    assert sorted(ROWS.keys() - {"What", "What waits", "---"}) == sorted([*BOUNDS, *WAITS])


@pytest.mark.parametrize("what", BOUNDS)
def test_a_bound_is_that_of_the_code(what: str) -> None:
    error, texts = BOUNDS[what]
    bound, then = ROWS[what]
    assert error in then
    assert not [text for text in texts if text not in bound], f"{what}: {bound}; the code has {texts}"
    assert error in ("", "none", "exit code 2") or hasattr(txnclient, error)


@pytest.mark.parametrize("what", WAITS)
def test_a_fixed_wait_is_that_of_the_code(what: str) -> None:
    told = ROWS[what][0]
    assert told.split("; ") == list(dict.fromkeys(map(seconds, WAITS[what]))), what


def test_names_may_be_as_long_as_is_told() -> None:
    assert names.validate_name("a" * 128, part="name")
    with pytest.raises(InvalidArgument):
        names.validate_name("a" * 129, part="name")


def test_least_values_of_settings_are_those_of_the_code() -> None:
    told = SECTION.split("**Least values of settings**")[1].replace("\n", " ")
    found = []
    for name, field in ServerSettings.model_fields.items():
        for limit in field.metadata:
            if hasattr(limit, "ge"):
                found.append(f"`{name}` {number(int(limit.ge))}")
            elif hasattr(limit, "gt"):
                found.append(f"`{name}` above {number(int(limit.gt))}")
    assert name_settings.keeps("60s") == (name_settings.LEAST_KEEP_S, {})
    assert name_settings.bounds("1") == (1, {})
    found += ["`names_keep` a minute", "`names_max` 1"]
    assert [text for text in found if text not in told] == []
    assert len(re.findall("`", told)) == 2 * len(found)
