"""Segment topics as a Spark source and sink, exactly once in and out: `spark.readStream.format("txnstore")`."""

from __future__ import annotations

from pyspark_txnstore.data_source import DefaultSource

__all__ = ["DefaultSource"]
