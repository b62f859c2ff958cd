"""From a database into a topic, exactly once: an outbox in SQLite, and the relay that empties it.

    txnctl dev &                                              # a cluster on this machine
    python examples/outbox_relay.py --db shop.db --place 100  # the application: orders, each with its outbox row
    python examples/outbox_relay.py --db shop.db --relay      # the relay; kill it, start it again, start two
    python examples/outbox_relay.py --db shop.db --check      # the topic has each order once

The application writes what it wants to tell into the table `outbox`, in the same transaction of the database as its
work. The relay makes batches of the rows. Which rows are in a batch stands in the database before the first of them is
sent, and the batch names a transaction: a relay that comes back finds whether the batch has committed. So a batch is in
the topic once, whenever a relay is killed, and two relays do no harm.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import txnclient
import txnclient.sync

ORDERS = "topic://public/outbox/orders"
BATCH = 20
TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY AUTOINCREMENT, customer TEXT, amount INTEGER);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value TEXT, batch INTEGER);
CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT);
"""


def opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    db.executescript(TABLES)
    db.execute("INSERT OR IGNORE INTO identity VALUES (1, ?)", (uuid.uuid4().hex,))
    return db


@contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """One transaction of the database."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def place(db: sqlite3.Connection, count: int) -> None:
    for number in range(count):
        customer, amount = f"customer-{number % 7}", number % 5 + 1
        with writing(db):  # the order and what is told of it: both, or neither
            placed = db.execute("INSERT INTO orders (customer, amount) VALUES (?, ?)", (customer, amount))
            told = json.dumps({"order": placed.lastrowid, "amount": amount})
            db.execute("INSERT INTO outbox (key, value) VALUES (?, ?)", (customer, told))
    print(f"{count} orders placed")


def next_batch(db: sqlite3.Connection) -> int | None:
    """The oldest batch: one that was begun before, else a new one, called by its first row, whose id never comes
    again. None: the outbox is empty."""
    with writing(db):
        (begun,) = db.execute("SELECT min(batch) FROM outbox").fetchone()
        if begun is not None:
            return int(begun)
        (first,) = db.execute("SELECT min(id) FROM outbox").fetchone()
        rows = "SELECT id FROM outbox ORDER BY id LIMIT ?"
        db.execute(f"UPDATE outbox SET batch = ? WHERE id IN ({rows})", (first, BATCH))
    return None if first is None else int(first)


def send(client: txnclient.sync.Client, producer: txnclient.sync.Producer, db: sqlite3.Connection, batch: int) -> None:
    """Returns once the batch has committed, by whichever relay. Raises `TxnError` if it may not have: call it again."""
    (source,) = db.execute("SELECT id FROM identity").fetchone()
    rows = db.execute("SELECT key, value FROM outbox WHERE batch = ? ORDER BY id", (batch,)).fetchall()
    txn = client.begin(name=f"outbox/{source}/{batch}", timeout=20)
    if txn.state == "COMMITTED" or not rows:
        return
    try:
        producer.send_many([(key, value.encode()) for key, value in rows], txn=txn)
        txn.commit(writers=[txn.writer_id])  # what a killed relay has left in it does not count
    except txnclient.TxnDecided:
        pass  # another relay was faster
    except BaseException:
        txn.leave()
        raise


def relay(url: str, db: sqlite3.Connection, idle: float) -> None:
    """Until the outbox was empty for `idle` seconds."""
    sent, quiet_since = 0, time.monotonic()
    with txnclient.sync.connect(url) as client:
        client.create_topic(ORDERS, segments=2)
        with client.producer(ORDERS) as producer:
            while time.monotonic() - quiet_since < idle:
                batch = next_batch(db)
                if batch is None:
                    time.sleep(0.05)
                    continue
                try:
                    send(client, producer, db, batch)
                except txnclient.TxnError as error:
                    if error.fatal or not (error.retriable or error.requires_abort):
                        raise
                    print(f"batch {batch} again: {error}", file=sys.stderr)
                    time.sleep(0.2)
                else:
                    db.execute("DELETE FROM outbox WHERE batch = ?", (batch,))
                    sent += 1
                quiet_since = time.monotonic()
    print(f"{sent} batches sent")


def check(url: str, db: sqlite3.Connection) -> None:
    placed = db.execute("SELECT id, amount FROM orders ORDER BY id").fetchall()
    (left,) = db.execute("SELECT count(*) FROM outbox").fetchone()
    last: dict[bytes | None, int] = {}
    with txnclient.sync.connect(url) as client, client.reader(ORDERS, end="latest", serializer="json") as reader:
        told = []
        for message in reader:
            told.append((message.value["order"], message.value["amount"]))
            if message.value["order"] < last.get(message.key, 0):
                raise SystemExit(f"{message.key!r}: order {message.value['order']} comes behind a later one")
            last[message.key] = message.value["order"]
    if sorted(told) != placed or left:
        raise SystemExit(f"{len(placed)} orders placed, {len(told)} told, {left} in the outbox")
    print(f"{len(told)} orders told once, in order for each customer")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--db", type=Path, default=Path("shop.db"))
    parser.add_argument("--place", type=int, metavar="N", help="place N orders")
    parser.add_argument("--relay", action="store_true", help="empty the outbox")
    parser.add_argument("--idle", type=float, default=2.0, help="end after so many seconds without a row")
    parser.add_argument("--check", action="store_true", help="compare database and topic")
    given = parser.parse_args()
    with closing(opened(given.db)) as db:
        if given.place:
            place(db, given.place)
        if given.relay:
            relay(given.url, db, given.idle)
        if given.check:
            check(given.url, db)


if __name__ == "__main__":
    main()
