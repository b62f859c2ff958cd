"""A worker process of `test_numbered.py`: sends numbered items from where its producer says, many at once."""

from __future__ import annotations

import argparse
import asyncio

import txnclient

TOPIC = "topic://public/numbered/items"
NAME = "importer"
AT_ONCE = 50


def sequence_id(number: int) -> int:
    """The source's ids have gaps."""
    return number * 3


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--items", type=int, required=True)
    parser.add_argument("--again", type=int, default=30, help="items sent again though they are known to be stored")
    given = parser.parse_args()
    async with (
        txnclient.connect(given.url, timeout=60.0) as client,
        client.producer(TOPIC, name=NAME, sequence_id=-1, linger_ms=1) as producer,
    ):
        first = max(0, producer.last_sequence_id // 3 + 1 - given.again)
        for at in range(first, given.items, AT_ONCE):
            numbers = range(at, min(at + AT_ONCE, given.items))
            await asyncio.gather(
                *(
                    producer.send(b"%d" % sequence_id(one), key=f"k{one % 17}", sequence_id=sequence_id(one))
                    for one in numbers
                )
            )
            print(numbers[-1], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
