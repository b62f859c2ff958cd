"""Parsing of `txn://host[:port][,host[:port]…]`."""

from __future__ import annotations

import re

from txnwire.errors import InvalidArgument

SCHEME = "txn://"
DEFAULT_PORT = 6650

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]*))(?::([0-9]{1,5}))?\Z")


def parse_url(url: str) -> list[str]:
    """The `host:port` addresses of a service URL, each once, in order; without a port that of `DEFAULT_PORT`. Raises
    `InvalidArgument` naming the wrong part."""
    if not isinstance(url, str) or not url.startswith(SCHEME):
        raise InvalidArgument(f"service URL {url!r}: expected txn://host:port[,host:port...]")
    addresses = []
    for address in url[len(SCHEME) :].rstrip("/").split(","):
        match = _HOST_PORT.match(address.strip())
        if match is None or not 0 < int(match[3] or DEFAULT_PORT) < 65536:
            raise InvalidArgument(f"service URL {url!r}: {address!r} is not host:port")
        addresses.append(f"{match[1]}:{match[3] or DEFAULT_PORT}")
    return list(dict.fromkeys(addresses))
