"""Segment topics as a Spark source and sink, exactly once in and out: `spark.readStream.format("txnstore")`.

Decides which rows a micro-batch has, and under which transaction its rows are written. Imports `txnclient` and
`txnwire`, as any client does. Begin with `data_source`, then the rooms `source` and `sink`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_txnstore.data_source import DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    """Loads `DefaultSource` on first use, so that readers of checkpoints and transaction names run without Spark."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_txnstore.data_source import DefaultSource

    return DefaultSource
