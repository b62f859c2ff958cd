"""Orders in, invoices and a ledger out: each order exactly once, whatever is killed in between.

    txnctl dev &                                                   # a cluster on this machine
    python examples/consume_transform_produce.py --orders 10000    # orders, one billing process, the check
    python examples/consume_transform_produce.py --bill            # in other terminals: more billing processes

A user writes the handler, `bill`. The loop around it takes a batch of orders, sends what the handler gives back and
acks the orders, in one transaction; what fails in between is done again, and what was done again leaves no trace. Any
number of processes share the work: each segment of the orders is with one of them, in order per customer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from collections import Counter
from typing import Any

import txnclient

ORDERS = "topic://public/billing/orders"
INVOICES = "topic://public/billing/invoices"
LEDGER = "topic://public/billing/ledger"
PRICES = {"tea": 4, "coffee": 7, "honey": 12}


def bill(message: txnclient.Message[Any]) -> list[txnclient.Output]:
    """What an order becomes: an invoice for the customer, whose key it keeps, and a booking for the accountants."""
    order = message.value
    total = PRICES[order["item"]] * order["count"]
    return [
        txnclient.Output({"order": order["id"], "total": total}, to="invoices"),
        txnclient.Output({"order": order["id"], "amount": total}, key="revenue", to="ledger"),
    ]


async def run_billing(client: txnclient.Client, idle_timeout: float | None) -> None:
    async with (
        client.consumer(ORDERS, "billing", serializer="json") as orders,
        client.producer(INVOICES, serializer="json") as invoices,
        client.producer(LEDGER, serializer="json") as ledger,
    ):
        producers = {"invoices": invoices, "ledger": ledger}
        done = await txnclient.process(orders, bill, producers, batch_messages=200, idle_timeout=idle_timeout)
        print(
            f"billing process {os.getpid()}: {done.messages} orders in {done.transactions} transactions, "
            f"{done.again} times again"
        )


async def place_orders(client: txnclient.Client, count: int) -> None:
    async with client.producer(ORDERS, serializer="json") as producer:
        orders = [
            (f"customer-{number % 100}", {"id": number, "item": random.choice(list(PRICES)), "count": number % 5 + 1})
            for number in range(count)
        ]
        await producer.send_many(orders)
    print(f"{count} orders placed")


async def check(client: txnclient.Client) -> None:
    """Every order has one invoice and one booking, and they are the same money. Raises SystemExit otherwise."""
    totals: dict[str, Counter[int]] = {}
    for topic, column in ((INVOICES, "total"), (LEDGER, "amount")):
        totals[topic] = Counter()
        async with client.reader(topic, end="latest", serializer="json") as reader:
            async for message in reader:
                if message.value["order"] in totals[topic]:
                    raise SystemExit(f"order {message.value['order']} is in {topic} twice")
                totals[topic][message.value["order"]] = message.value[column]
    async with client.reader(ORDERS, end="latest", serializer="json") as reader:
        placed = {message.value["id"] async for message in reader}
    if not set(totals[INVOICES]) == set(totals[LEDGER]) == placed or totals[INVOICES] != totals[LEDGER]:
        raise SystemExit(f"{len(placed)} orders, but {len(totals[INVOICES])} invoices, {len(totals[LEDGER])} bookings")
    print(f"{len(placed)} orders billed exactly once, revenue {sum(totals[LEDGER].values())}")


async def main(arguments: argparse.Namespace) -> None:
    async with txnclient.connect(arguments.url) as client:
        for topic in (ORDERS, INVOICES, LEDGER):
            await client.create_topic(topic, segments=4)
        if arguments.bill:
            await run_billing(client, arguments.idle)
        elif arguments.check:
            await check(client)
        else:
            await place_orders(client, arguments.orders)
            await run_billing(client, arguments.idle)
            await check(client)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--orders", type=int, default=1000, help="how many to place")
    parser.add_argument("--idle", type=float, default=2.0, help="end after so many seconds without an order")
    parser.add_argument("--bill", action="store_true", help="be one more billing process, and nothing else")
    parser.add_argument("--check", action="store_true", help="only check what was billed")
    asyncio.run(main(parser.parse_args()))
