"""Decides which etcd releases keep acknowledged writes (DESIGN §4). Pure."""

from __future__ import annotations

import re
from typing import Final

import structlog

from txnwire.errors import InvalidArgument

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_LOSES_APPLIED: Final = ((3, 5, 0), (3, 5, 2))
_OLDEST: Final = (3, 4, 0)
_SAFE_SINGLE: Final = {(3, 4): 21, (3, 5): 5}

log = structlog.get_logger(__name__)


def check_release(version: str, *, development: bool, endpoint: str) -> None:
    """Raises `InvalidArgument` for a release that must not hold data, and warns of one that may lose some."""
    match = _VERSION.match(version)
    if match is None:
        raise InvalidArgument(f"etcd at {endpoint} has version {version!r}: expected major.minor.patch")
    release = (int(match[1]), int(match[2]), int(match[3]))
    if release < _OLDEST:
        raise InvalidArgument(f"etcd at {endpoint} is {version}: 3.4 is the oldest that will do")
    if _LOSES_APPLIED[0] <= release <= _LOSES_APPLIED[1]:
        if not development:
            raise InvalidArgument(
                f"etcd at {endpoint} is {version}: 3.5.0-3.5.2 can lose applied entries in a crash. Upgrade it, "
                "or allow it for development"
            )
        log.warning("development only: this etcd can lose applied entries in a crash", version=version)
    elif release[2] < _SAFE_SINGLE.get(release[:2], 0):
        log.warning("as a cluster of one, this etcd can lose an acknowledged write in a crash", version=version)
