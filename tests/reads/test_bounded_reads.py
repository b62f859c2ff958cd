"""Every read of a range is in pages, or is one of those whose size has a bound that is named here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("txnstore", "watchers", "segments", "coordinator_v5", "txnctl")
NO_READERS = (
    "txnstore/memory/mvcc.py",
    "txnstore/memory/memory_store.py",
    "txnstore/access/store_client.py",
    "txnstore/store.py",
)
"""What the reads are made of."""

BOUNDED = {
    "txnstore/maintenance.py Maintenance._oldest_pin": "a key for each process that reads at a revision",
    "txnstore/access/paging.py in_pages": "here it is",
    "segments/log/housekeeping.py Housekeeping.forgotten": "asks for one",
    "segments/subscription/subscription_table.py SubscriptionTable._check_ancestors": "keys of at most 4 096 segments",
    "segments/log/ledgers/ledger_list.py read_list": "a list is needed whole: 0.5 KB a ledger",
    "segments/log/erasing.py _erase": "has a limit",
    "segments/layout/directory.py Directory._load": "a table is needed whole, at one revision",
    "coordinator_v5/queries.py describe_transaction": "has a limit",
    "coordinator_v5/ownership.py TcidOwnership._hold": "a key for each coordinator id",
    "coordinator_v5/ownership.py TcidOwnership._wait_name_free": "likewise",
    "coordinator_v5/background/collector.py Collector._look": "headers of one block of outcomes, 4 096 at most",
}


def reads(path: Path) -> Iterator[str]:
    def within(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            yield from within(child, (*names, child.name) if named else names)  # type: ignore[attr-defined]
            function = child.func if isinstance(child, ast.Call) else None
            if isinstance(function, ast.Attribute) and function.attr == "range":
                yield ".".join(names)

    yield from within(ast.parse(path.read_text()), ())


def test_what_is_read_in_one_piece_has_a_bound() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()} {where}": None
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in NO_READERS
        for where in reads(path)
    }
    assert sorted(found) == sorted(BOUNDED)
