"""A worker process of `test_transaction_keys.py`: holder of a transaction key, passes inputs on, a transaction after
another, until nothing comes any more or somebody else holds the key. What it says: one JSON object a line."""

from __future__ import annotations

import argparse
import asyncio
import json

import txnclient

INPUT, OUTPUT = "topic://public/keyed/in", "topic://public/keyed/out"
SUBSCRIPTION = "workers"


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def pass_on(client: txnclient.Client) -> None:
    """Until an error that ends a transaction, or until nothing has come for long."""
    async with (
        await client.producer(OUTPUT) as producer,
        await client.consumer(INPUT, SUBSCRIPTION, name="worker") as consumer,
    ):
        while messages := await consumer.receive_many(5, timeout=20.0):
            async with client.transaction(timeout=120.0) as txn:
                for message in messages:
                    await producer.send(message.value, key="one", txn=txn)
                await consumer.ack_cumulative(messages[-1], txn=txn)
                say(open=str(txn.id))
                await asyncio.sleep(0.02)
            say(committed=len(messages))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--key", required=True)
    given = parser.parse_args()
    async with txnclient.connect(given.url, transaction_key=given.key, timeout=60.0) as client:
        say(epoch=client.key_epoch)
        while True:
            try:
                await pass_on(client)
            except txnclient.ExpiredTransaction as error:
                say(expired=str(error))
                return
            except txnclient.TxnError as error:
                if not (error.retriable or error.requires_abort or isinstance(error, txnclient.InvalidTxnState)):
                    raise
                say(error=f"{type(error).__name__}: {error}")
            else:
                say(done=True)
                return


if __name__ == "__main__":
    asyncio.run(main())
