"""Every key in etcd, built and taken apart in one place (DESIGN §4, the table of records).

Names need no escaping (`txnwire.names` refuses `/` in them); free text is percent-encoded by `quote_text`.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from txnwire.errors import InvalidArgument
from txnwire.ids import TxnId

TXN = b"/txn/"
TXN_OP = b"/txn-op/"
INDEXES = b"/idx/"
WRITES_BY_SEGMENT = b"/idx/writes-by-segment/"
ACKS_BY_SEGMENT_SUBSCRIPTION = b"/idx/acks-by-segment-subscription/"
TXN_BY_DEADLINE = b"/idx/txn-by-deadline/"
TXN_OUTCOME = b"/txn-outcome/"
TXN_NAME = b"/txn-name/"
TXN_KEY = b"/txn-key/"
TXN_SEQ = b"/txn-seq/"
SEGMENT_STATE = b"/segment-state/"
TOPIC = b"/topic/"
LEDGER = b"/ledger/"
CURSOR = b"/cursor/"
SUBSCRIPTION = b"/subscription/"
ASSIGNMENT = b"/assignment/"
DRAINED = b"/drained/"
OWNER = b"/owner/"
BROKER = b"/broker/"
TC = b"/tc/"
TC_MEMBER = b"/tc-member/"
LEADER = b"/leader/"
LOAD = b"/load/"
SEGMENT_IDS = b"/segment-ids"
GC_HORIZON = b"/gc-horizon"
INCARNATION = b"/incarnation"
DATA_FOLDER = b"/data-folder"
PIN = b"/pin/"
SENDER = b"/sender/"
COMPACTION = b"/compaction"

OUTCOMES_PER_BLOCK = 4096


def prefix_end(prefix: bytes) -> bytes:
    """The first key after every key that starts with `prefix` (which must not end in 0xff)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def quote_text(text: str) -> str:
    return quote(text, safe="")


def unquote_text(text: str) -> str:
    return unquote(text)


def txn(txn_id: TxnId) -> bytes:
    return TXN + str(txn_id).encode()


def txn_of(key: bytes) -> TxnId:
    """The id in any key that ends with one: headers, index keys, deadline keys."""
    return TxnId.parse(key.rpartition(b"/")[2].decode())


def txn_ops(txn_id: TxnId) -> bytes:
    """Prefix of all op records of one transaction."""
    return TXN_OP + str(txn_id).encode() + b"/"


def write_ops(txn_id: TxnId, segment: str) -> bytes:
    """Prefix of one segment's write ops: what its owner, and nobody else, range-deletes."""
    return txn_ops(txn_id) + segment.encode() + b"/w/"


def ack_ops(txn_id: TxnId, segment: str, subscription: str) -> bytes:
    return txn_ops(txn_id) + f"{segment}/a/{subscription}/".encode()


def op(prefix: bytes, epoch: int, counter: int) -> bytes:
    """`prefix` from `write_ops` or `ack_ops`. The counter is per broker process and never restarts (▲ §4)."""
    return prefix + f"{epoch}-{counter:012d}".encode()


def op_parts(key: bytes) -> tuple[TxnId, str, str | None]:
    """(transaction, segment path, subscription or None for a write) of an op key."""
    parts = key[len(TXN_OP) :].decode().split("/")
    if len(parts) == 7 and parts[5] == "w":
        return TxnId.parse(parts[0]), "/".join(parts[1:5]), None
    if len(parts) == 8 and parts[5] == "a":
        return TxnId.parse(parts[0]), "/".join(parts[1:5]), parts[6]
    raise InvalidArgument(f"{key!r} is not an op key: expected /txn-op/<txn>/<segment>/w|a/…")


def writes_by_segment(segment: str) -> bytes:
    """Prefix of the index of transactions with writes in one segment."""
    return WRITES_BY_SEGMENT + segment.encode() + b"/"


def write_index(segment: str, txn_id: TxnId) -> bytes:
    return writes_by_segment(segment) + str(txn_id).encode()


def acks_by_segment(segment: str) -> bytes:
    """Prefix over all subscriptions of one segment."""
    return ACKS_BY_SEGMENT_SUBSCRIPTION + segment.encode() + b"/"


def acks_by_segment_subscription(segment: str, subscription: str) -> bytes:
    return acks_by_segment(segment) + subscription.encode() + b"/"


def ack_index(segment: str, subscription: str, txn_id: TxnId) -> bytes:
    return acks_by_segment_subscription(segment, subscription) + str(txn_id).encode()


def deadline(timeout_ms: int, txn_id: TxnId) -> bytes:
    return TXN_BY_DEADLINE + f"{timeout_ms:013d}/{txn_id}".encode()


def deadline_parts(key: bytes) -> tuple[int, TxnId]:
    timeout_ms, _, txn_id = key[len(TXN_BY_DEADLINE) :].decode().partition("/")
    return int(timeout_ms), TxnId.parse(txn_id)


def outcome_block(txn_id: TxnId) -> bytes:
    return TXN_OUTCOME + f"{txn_id.tcid:04x}/{txn_id.counter // OUTCOMES_PER_BLOCK:013x}".encode()


def txn_name(name: str) -> bytes:
    return TXN_NAME + quote(name, safe="/").encode()


def txn_key(owner: str, key: str) -> bytes:
    return TXN_KEY + f"{quote_text(owner)}&{quote_text(key)}".encode()


def txn_key_parts(key: bytes) -> tuple[str, str]:
    """(owner, transaction key) of a key record's key."""
    owner, _, text = key[len(TXN_KEY) :].decode().partition("&")
    return unquote_text(owner), unquote_text(text)


def txn_seq(tcid: int) -> bytes:
    return TXN_SEQ + f"{tcid:04x}".encode()


def tc(tcid: int) -> bytes:
    return TC + f"{tcid:04x}".encode()


def segment_state(segment: str) -> bytes:
    """Prefix of the watermark and the aborted records of one segment."""
    return SEGMENT_STATE + segment.encode() + b"/"


def tc_member(coordinator_id: str) -> bytes:
    """Right before `TC`: one range holds who is there and who has what."""
    return TC_MEMBER + coordinator_id.encode()


def watermark(segment: str) -> bytes:
    return SEGMENT_STATE + segment.encode() + b"/watermark"


def aborted_records(segment: str) -> bytes:
    """Prefix of one segment's aborted records."""
    return SEGMENT_STATE + segment.encode() + b"/aborted/"


def aborted(segment: str, txn_id: TxnId, writer: int | None = None) -> bytes:
    """A record for the whole transaction, or for one writer (16 hex digits) of a named one."""
    suffix = "" if writer is None else f"/{writer:016x}"
    return aborted_records(segment) + f"{txn_id}{suffix}".encode()


def aborted_parts(key: bytes) -> tuple[TxnId, int | None]:
    tail = key.decode().partition("/aborted/")[2]
    txn_text, _, writer = tail.partition("/")
    return TxnId.parse(txn_text), int(writer, 16) if writer else None


def topic(topic_path: str) -> bytes:
    return TOPIC + topic_path.encode()


def ledger(segment: str) -> bytes:
    return LEDGER + segment.encode()


def cursors(segment: str) -> bytes:
    """Prefix of the cursor blocks of all subscriptions of one segment."""
    return CURSOR + segment.encode() + b"/"


def cursor_blocks(segment: str, subscription: str) -> bytes:
    return cursors(segment) + subscription.encode() + b"/"


def cursor_block(segment: str, subscription: str, block: str) -> bytes:
    return cursor_blocks(segment, subscription) + block.encode()


def subscriptions(topic_path: str) -> bytes:
    return SUBSCRIPTION + topic_path.encode() + b"/"


def subscription(topic_path: str, name: str) -> bytes:
    return subscriptions(topic_path) + name.encode()


def assignment(topic_path: str, subscription_name: str) -> bytes:
    return ASSIGNMENT + f"{topic_path}/{subscription_name}".encode()


def drained_by_subscription(topic_path: str, subscription_name: str) -> bytes:
    """Prefix of the sealed segments that a subscription has wholly consumed."""
    return DRAINED + f"{topic_path}/{subscription_name}/".encode()


def drained(topic_path: str, subscription_name: str, segment_id: int) -> bytes:
    return drained_by_subscription(topic_path, subscription_name) + str(segment_id).encode()


def owner(segment: str) -> bytes:
    return OWNER + segment.encode()


def broker(broker_id: str) -> bytes:
    return BROKER + broker_id.encode()


def leader(what: str) -> bytes:
    return LEADER + what.encode()


def load(segment: str) -> bytes:
    return LOAD + segment.encode()
