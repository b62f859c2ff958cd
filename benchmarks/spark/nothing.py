"""A sink in Python that takes all rows and commits nothing: what Spark's own work for such a sink costs."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


class Nothing(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nothing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> NothingWriter:
        return NothingWriter()


class NothingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
