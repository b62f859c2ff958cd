"""A web service that takes orders: a request that is sent again, however often, places its order once.

    pip install fastapi uvicorn
    txnctl dev &                                     # a cluster on this machine
    python examples/web_orders.py --port 8000 &      # any number of these, behind any load balancer
    curl -X POST localhost:8000/orders -H 'Idempotency-Key: 7f3a' -H 'Content-Type: application/json' \
        -d '{"customer": "anna", "item": "tea", "count": 2}'
    python examples/web_orders.py --check            # each order is in both topics once

The customer's program chooses an `Idempotency-Key` for each order, and sends the request again with the same key until
it gets an answer. The key names a transaction. Whoever begins a name that has committed is told so, and what the commit
has noted; of several requests of one key that are under way at once, in however many processes, one commits.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel, Field

import txnclient

URL = os.environ.get("TXN_URL", "txn://127.0.0.1:6650")
ORDERS, BOOKINGS = "topic://public/web/orders", "topic://public/web/bookings"
PRICES = {"tea": 4, "coffee": 7, "honey": 12}
KEEP = timedelta(days=1)
"""How long an answer is remembered, in etcd: longer than anybody sends a request again, and no longer."""


class Order(BaseModel):
    customer: str
    item: str
    count: int = Field(gt=0)


class Shop:
    """Places orders; `opened` connects."""

    def __init__(self, client: txnclient.Client, orders: txnclient.Producer, bookings: txnclient.Producer) -> None:
        self._client = client
        self._orders = orders
        self._bookings = bookings

    @staticmethod
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Shop]:
        async with txnclient.connect(url) as client:
            for topic in (ORDERS, BOOKINGS):
                await client.create_topic(topic, segments=2)
            async with (
                client.producer(ORDERS, serializer="json") as orders,
                client.producer(BOOKINGS, serializer="json") as bookings,
            ):
                yield Shop(client, orders, bookings)

    async def place(self, key: str, order: Order) -> dict[str, Any]:
        """The answer of this request, or of the first one with its key."""
        content = hashlib.sha256(order.model_dump_json().encode()).hexdigest()[:16]
        answer = {"order": uuid.uuid4().hex, "total": PRICES[order.item] * order.count, "content": content}
        while True:
            txn = await self._client.begin(name=f"web-orders/{key}", timeout=20.0, keep=KEEP)
            if txn.state == "COMMITTED":
                return told_before(txn.note, content)
            try:
                placed = {"id": answer["order"], **order.model_dump()}
                await self._orders.send(placed, key=order.customer, txn=txn)
                booking = {"order": answer["order"], "amount": answer["total"]}
                await self._bookings.send(booking, key=order.customer, txn=txn)
                # Only what this request has sent counts, not what one with the same key has sent that failed or died.
                await txn.commit(writers=[txn.writer_id], note=json.dumps(answer))
                return answer
            except txnclient.TxnDecided:
                continue  # another request of this key was faster: its note has the answer
            except BaseException:
                await txn.leave()  # not `abort`: the next request of this key may be at work in it already
                raise


def told_before(note: str | None, content: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(note or "{}")
    if answer.get("content") != content:
        raise HTTPException(422, "this Idempotency-Key belongs to another order")
    return answer


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Shop.opened(URL) as shop:
        app.state.shop = shop
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place_order(order: Order, idempotency_key: Annotated[str, Header(max_length=100)]) -> dict[str, Any]:
    if order.item not in PRICES:
        raise HTTPException(422, f"we sell {', '.join(PRICES)}")
    try:
        return await app.state.shop.place(idempotency_key, order)
    except txnclient.TxnError as error:
        if error.retriable or error.requires_abort:  # the same request may succeed
            raise HTTPException(503, str(error), headers={"Retry-After": "1"}) from error
        raise


async def check() -> None:
    """Raises SystemExit unless both topics hold the same orders, each once."""
    async with txnclient.connect(URL) as client:
        until = await client.snapshot([ORDERS, BOOKINGS])
        placed: dict[str, int] = {}
        async with client.reader(ORDERS, end=until, serializer="json") as orders:
            async for message in orders:
                order = message.value
                if order["id"] in placed:
                    raise SystemExit(f"order {order['id']} was placed twice")
                placed[order["id"]] = PRICES[order["item"]] * order["count"]
        async with client.reader(BOOKINGS, end=until, serializer="json") as bookings:
            booked = [(message.value["order"], message.value["amount"]) async for message in bookings]
    if sorted(booked) != sorted(placed.items()):
        raise SystemExit(f"{len(placed)} orders, but {len(booked)} bookings")
    print(f"{len(placed)} orders placed once, booked {sum(placed.values())}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--check", action="store_true", help="only check what was placed")
    given = parser.parse_args()
    if given.check:
        asyncio.run(check())
    else:
        uvicorn.run(app, port=given.port, log_level="warning")
