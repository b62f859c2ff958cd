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
TXN_NAME_COUNTS = b"/txn-name-counts"
TXN_KEY = b"/txn-key/"
TXN_SEQ = b"/txn-seq/"
SEGMENT_STATE = b"/segment-state/"
TOPIC = b"/topic/"
LEDGER = b"/ledger/"
LEDGER_PAGE = b"/ledger-page/"
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
CLOCK = b"/clock"

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
    """The id in any key that ends with one: headers, index keys, deadline keys. Raises `InvalidArgument`."""
    return TxnId.parse(key.rpartition(b"/")[2].decode(errors="replace"))


def txn_ops(txn_id: TxnId) -> bytes:
    """Prefix of all op records of one transaction."""
    return TXN_OP + str(txn_id).encode() + b"/"


def write_ops(txn_id: TxnId, segment: str) -> bytes:
    """Prefix of one segment's write ops: only the segment's owner range-deletes it."""
    return txn_ops(txn_id) + segment.encode() + b"/w/"


def ack_ops(txn_id: TxnId, segment: str, subscription: str) -> bytes:
    return txn_ops(txn_id) + f"{segment}/a/{subscription}/".encode()


def op(prefix: bytes, epoch: int, counter: int) -> bytes:
    """`prefix` from `write_ops` or `ack_ops`. The counter is per broker process and never restarts (▲ §4)."""
    return prefix + f"{epoch}-{counter:012d}".encode()


def op_txn(key: bytes) -> TxnId:
    """The transaction of an op key, or of any other key under its ops."""
    return TxnId.parse(key[len(TXN_OP) :].decode(errors="replace").partition("/")[0])


def op_parts(key: bytes) -> tuple[TxnId, str, str | None]:
    """(transaction, segment path, subscription or None for a write) of an op key."""
    parts = key[len(TXN_OP) :].decode(errors="replace").split("/")
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


def ack_index_parts(key: bytes) -> tuple[str, str, TxnId]:
    """(segment path, subscription, transaction) of an ack index key."""
    segment, subscription, txn_text = key[len(ACKS_BY_SEGMENT_SUBSCRIPTION) :].decode().rsplit("/", 2)
    return segment, subscription, TxnId.parse(txn_text)


def deadline(timeout_ms: int, txn_id: TxnId) -> bytes:
    return TXN_BY_DEADLINE + f"{timeout_ms:013d}/{txn_id}".encode()


def deadline_parts(key: bytes) -> tuple[int, TxnId]:
    """(deadline in epoch ms, transaction). Raises `InvalidArgument`."""
    timeout_ms, _, txn_id = key[len(TXN_BY_DEADLINE) :].decode(errors="replace").partition("/")
    if not (timeout_ms.isascii() and timeout_ms.isdigit() and len(timeout_ms) < 20):  # int refuses very many
        raise InvalidArgument(f"{key!r} is not a deadline key: expected /idx/txn-by-deadline/<epoch ms>/<txn>")
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
    """Sorts right before `TC`: one range holds the members and the holders."""
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


def segment_state_parts(key: bytes) -> tuple[str, str]:
    """(segment path, `watermark` or `aborted/…`) of a key under `SEGMENT_STATE`.

    ▲ The four parts of the path are counted from the front: a tenant, namespace or topic may be called `aborted` or
    `watermark`, and no broker can serve a segment whose aborted records it cannot read.
    """
    *path, rest = key[len(SEGMENT_STATE) :].decode().split("/", 4)
    if len(path) != 4 or not (rest == "watermark" or rest.startswith("aborted/")):
        raise InvalidArgument(f"{key!r} is no segment state: expected /segment-state/<segment>/watermark|aborted/<txn>")
    return "/".join(path), rest


def aborted_parts(key: bytes) -> tuple[TxnId, int | None]:
    """(transaction, writer or None for all of it) of an aborted record's key."""
    what, _, tail = segment_state_parts(key)[1].partition("/")
    if what != "aborted":
        raise InvalidArgument(f"{key!r} is no aborted record: expected /segment-state/<segment>/aborted/<txn>")
    txn_text, _, writer = tail.partition("/")
    return TxnId.parse(txn_text), int(writer, 16) if writer else None


def txn_name_text(key: bytes) -> str:
    """The transaction name of a name record's key; bytes that are not UTF-8 are replaced."""
    return unquote_text(key[len(TXN_NAME) :].decode(errors="replace"))


def topic(topic_path: str) -> bytes:
    return TOPIC + topic_path.encode()


def ledger(segment: str) -> bytes:
    return LEDGER + segment.encode()


def ledger_pages(segment: str) -> bytes:
    """Prefix of the older part of one segment's ledger list."""
    return LEDGER_PAGE + segment.encode() + b"/"


def ledger_page(segment: str, ledger_id: int) -> bytes:
    """With enough digits that keys sort in the order of the ids."""
    return ledger_pages(segment) + f"{ledger_id:016d}".encode()


def ledger_page_parts(key: bytes) -> tuple[str, int]:
    """(segment path, ledger id) of a page's key."""
    segment, _, ledger_id = key[len(LEDGER_PAGE) :].decode().rpartition("/")
    return segment, int(ledger_id)


def cursors(segment: str) -> bytes:
    """Prefix of the cursor blocks of all subscriptions of one segment."""
    return CURSOR + segment.encode() + b"/"


def cursor_blocks(segment: str, subscription: str) -> bytes:
    return cursors(segment) + subscription.encode() + b"/"


def cursor_block(segment: str, subscription: str, block: str) -> bytes:
    return cursor_blocks(segment, subscription) + block.encode()


def cursor_parts(key: bytes) -> tuple[str, str, str]:
    """(segment path, subscription, block) of a cursor block's key."""
    segment, subscription_name, block = key[len(CURSOR) :].decode().rsplit("/", 2)
    return segment, subscription_name, block


def subscriptions(topic_path: str) -> bytes:
    return SUBSCRIPTION + topic_path.encode() + b"/"


def subscription(topic_path: str, name: str) -> bytes:
    return subscriptions(topic_path) + name.encode()


def assignment(topic_path: str, subscription_name: str) -> bytes:
    return ASSIGNMENT + f"{topic_path}/{subscription_name}".encode()


def topic_and_name(key: bytes) -> tuple[str, str]:
    """(topic path, subscription) of a subscription's or an assignment's key."""
    prefix = SUBSCRIPTION if key.startswith(SUBSCRIPTION) else ASSIGNMENT
    topic_path, _, name = key[len(prefix) :].decode().rpartition("/")
    return topic_path, name


def drained_by_subscription(topic_path: str, subscription_name: str) -> bytes:
    """Prefix of the sealed segments that a subscription has consumed completely."""
    return DRAINED + f"{topic_path}/{subscription_name}/".encode()


def drained(topic_path: str, subscription_name: str, segment_id: int) -> bytes:
    return drained_by_subscription(topic_path, subscription_name) + str(segment_id).encode()


def drained_parts(key: bytes) -> tuple[str, str, int]:
    """(topic path, subscription, segment id) of a drained record's key."""
    topic_path, name, segment_id = key[len(DRAINED) :].decode().rsplit("/", 2)
    return topic_path, name, int(segment_id)


def owner(segment: str) -> bytes:
    return OWNER + segment.encode()


def broker(broker_id: str) -> bytes:
    return BROKER + broker_id.encode()


def leader(what: str) -> bytes:
    return LEADER + what.encode()


def load(segment: str) -> bytes:
    return LOAD + segment.encode()
