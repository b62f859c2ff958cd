"""Run in a process of its own, with the pure-Python protobuf: watch `/txn/` with the independent client `etcd3`.

`python etcd3_witness.py HOST PORT PREFIX COUNT`: prints `watching`, then one line `key value` per event, and ends after
COUNT of them.
"""

from __future__ import annotations

import sys

import etcd3


def main(host: str, port: int, prefix: str, count: int) -> None:
    client = etcd3.client(host=host, port=port, timeout=20)
    events, cancel = client.watch_prefix(prefix)
    print("watching", flush=True)
    for _, event in zip(range(count), events, strict=False):
        print(event.key.decode(), event.value.decode(), flush=True)
    cancel()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
