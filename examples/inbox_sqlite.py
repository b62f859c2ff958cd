"""From a topic into a database, exactly once: an inbox in SQLite.

    txnctl dev &                                              # a cluster on this machine
    python examples/inbox_sqlite.py --db stock.db --send 100  # deliveries to the warehouse
    python examples/inbox_sqlite.py --db stock.db --take      # into the database; kill it, start it again
    python examples/inbox_sqlite.py --db stock.db --check     # the database has each delivery once

The database and the cluster cannot commit together. So the database commits first, and with its work it notes the ids
of the messages, in the table `inbox`. A message whose ack was lost, because the process was killed in between, comes
again and is found there.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import txnclient
import txnclient.sync

DELIVERIES = "topic://public/inbox/deliveries"
ITEMS = ("tea", "coffee", "honey")
TABLES = """
CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, amount INTEGER);
CREATE TABLE IF NOT EXISTS inbox (message TEXT PRIMARY KEY, taken TEXT DEFAULT CURRENT_TIMESTAMP) WITHOUT ROWID;
"""


def send(url: str, count: int) -> None:
    with txnclient.sync.connect(url) as client:
        client.create_topic(DELIVERIES, segments=2)
        with client.producer(DELIVERIES, serializer="json") as producer:
            for first in range(0, count, 10):
                several = range(first, min(first + 10, count))
                producer.send_many([(ITEMS[n % 3], {"item": ITEMS[n % 3], "amount": n % 5 + 1}) for n in several])
    print(f"{count} deliveries sent")


def take(url: str, db: sqlite3.Connection, idle: float) -> None:
    def apply(messages: Sequence[txnclient.Message[Any]], _: txnclient.sync.Transaction) -> None:
        with db:  # one transaction of the database; only then `process_batches` acks the messages
            for message in messages:
                noted = db.execute("INSERT OR IGNORE INTO inbox (message) VALUES (?)", (str(message.id),))
                if noted.rowcount:  # else it was taken before
                    change = (message.value["item"], message.value["amount"])
                    db.execute("INSERT OR IGNORE INTO stock VALUES (?, 0)", change[:1])
                    db.execute("UPDATE stock SET amount = amount + ? WHERE item = ?", change[::-1])

    with txnclient.sync.connect(url) as client:
        client.create_topic(DELIVERIES, segments=2)
        with client.consumer(DELIVERIES, "warehouse", serializer="json") as consumer:
            done = txnclient.sync.process_batches(consumer, apply, batch_messages=10, idle_timeout=idle)
    print(f"{done.messages} deliveries taken")


def check(url: str, db: sqlite3.Connection) -> None:
    sent: Counter[str] = Counter()
    count = 0
    with txnclient.sync.connect(url) as client, client.reader(DELIVERIES, end="latest", serializer="json") as reader:
        for message in reader:
            sent[message.value["item"]] += message.value["amount"]
            count += 1
    stock = Counter(dict(db.execute("SELECT item, amount FROM stock").fetchall()))
    if sent != stock:
        raise SystemExit(f"sent {dict(sent)}, in stock {dict(stock)}")
    print(f"{count} deliveries are in stock once: {sum(stock.values())} pieces")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--db", type=Path, default=Path("stock.db"))
    parser.add_argument("--send", type=int, metavar="N", help="send N deliveries")
    parser.add_argument("--take", action="store_true", help="take what there is into the database")
    parser.add_argument("--idle", type=float, default=2.0, help="end after so many seconds without a delivery")
    parser.add_argument("--check", action="store_true", help="compare topic and database")
    given = parser.parse_args()
    with closing(sqlite3.connect(given.db, timeout=30)) as db:
        db.executescript(TABLES)
        if given.send:
            send(given.url, given.send)
        if given.take:
            take(given.url, db, given.idle)
        if given.check:
            check(given.url, db)


if __name__ == "__main__":
    main()
