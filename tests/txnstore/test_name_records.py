"""Records of names: what is kept for long is small, and what earlier versions wrote is read."""

from __future__ import annotations

import pytest

from txnstore import records
from txnstore.records import ABORTED, COMMITTED, NameCounts, TxnName
from txnwire.errors import DataCorrupt

TXN = "0003-00000000000004d2"
COLLECTED_MS = 1_796_000_000_000
WEEK_MS = 7 * 24 * 3600 * 1000


def name(**fields: object) -> TxnName:
    known: dict[str, object] = {"v": 1, "txn_id": TXN, "collected_ms": COLLECTED_MS, "keep_ms": WEEK_MS}
    known |= {"outcome": COMMITTED, "keep_newest": False} | fields
    return TxnName(**known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("named", "written"),
    [
        (name(), b'[2,"3-4d2","C",1796000000,604800]'),
        (name(outcome=ABORTED, keep_ms=0), b'[2,"3-4d2","A",1796000000]'),
        (name(keep_newest=True), b'[2,"3-4d2","C",1796000000,604800,1]'),
        (name(writers=[]), b'[2,"3-4d2","C",1796000000,604800,0,[]]'),
        (name(writers=["000000000000000a"]), b'[2,"3-4d2","C",1796000000,604800,0,["000000000000000a"]]'),
        (name(note="rows=1"), b'[2,"3-4d2","C",1796000000,604800,0,null,"rows=1"]'),
        (name(note=""), b'[2,"3-4d2","C",1796000000,604800,0,null,""]'),
    ],
)
def test_a_collected_name_is_a_short_list_and_comes_back_as_it_was(named: TxnName, written: bytes) -> None:
    """▲ An empty list of writers is a commit that counted none, no list one that counted all."""
    assert records.encode(named) == written
    assert records.decode(TxnName, written, key=b"/txn-name/a") == named


def test_times_are_rounded_up() -> None:
    """Nothing is forgotten before its time."""
    odd = name(collected_ms=COLLECTED_MS + 1, keep_ms=60_001)
    back = records.decode(TxnName, records.encode(odd), key=b"/txn-name/a")
    assert (back.collected_ms, back.keep_ms) == (COLLECTED_MS + 1000, 61_000)


def test_what_earlier_versions_wrote_is_read() -> None:
    """They kept the newest commit of every prefix, without writing so."""
    old = b'{"v":1,"txn_id":"0003-00000000000004d2","outcome":"COMMITTED","writers":["a"],"collected_ms":5}'
    assert records.decode(TxnName, old, key=b"/txn-name/a") == TxnName(
        v=1, txn_id=TXN, outcome=COMMITTED, writers=["a"], collected_ms=5, keep_newest=True
    )


def test_an_open_name_stays_as_earlier_versions_read_it() -> None:
    opened = TxnName(v=1, txn_id=TXN, keep_ms=WEEK_MS, keep_newest=False)
    written = records.encode(opened)
    assert written == b'{"v":1,"txn_id":"0003-00000000000004d2","keep_ms":604800000,"keep_newest":false}'
    assert records.decode(TxnName, written, key=b"/txn-name/a") == opened


@pytest.mark.parametrize(
    "value",
    [
        b"[",
        b"[2]",
        b'[3,"3-4d2","C",1]',
        b'[2,"3-4d2","X",1]',
        b'[2,"3","C",1]',
        b'[2,"3-0","C",1]',
        b'[2,"-1--2","C",1]',
    ],
)
def test_what_is_no_name_is_refused_with_its_key(value: bytes) -> None:
    with pytest.raises(DataCorrupt, match="/txn-name/a"):
        records.decode(TxnName, value, key=b"/txn-name/a")


def test_counts_come_back() -> None:
    counts = NameCounts(counted_ms=7, namespaces={"orders": 2, "": 1}, others=3)
    assert records.decode(NameCounts, records.encode(counts), key=b"/txn-name-counts") == counts
