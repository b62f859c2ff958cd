"""The data source that Spark calls by the name `txnstore`."""

from __future__ import annotations

import os

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_txnstore.shared.options import SinkOptions, SourceOptions, columns_option
from pyspark_txnstore.sink.runs import mark_of
from pyspark_txnstore.sink.sink import BatchSink, StreamSink, batch_sink, stream_sink
from pyspark_txnstore.sink.tables import check_columns, refuse_no_options, refuse_table
from pyspark_txnstore.source.columns import check_schema, schema_of
from pyspark_txnstore.source.source import BatchReader
from pyspark_txnstore.source.stream import StreamReader


class DefaultSource(DataSource):
    """Implements `spark.read.format("txnstore")` and its like. Spark finds it where the package is installed. Where the
    package is only sent along (`--py-files`), call `spark.dataSource.register(DefaultSource)` first."""

    @classmethod
    def name(cls) -> str:
        return "txnstore"

    def schema(self) -> StructType:
        refuse_table(self.options)
        return schema_of(columns_option(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        refuse_no_options(self.options)
        return BatchReader(SourceOptions.parse(self.options, use="read"), check_schema(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        refuse_no_options(self.options)
        return StreamReader(SourceOptions.parse(self.options, use="stream read"), check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        refuse_no_options(self.options)
        check_columns(schema.fieldNames(), columns_option(self.options))
        return batch_sink(SinkOptions.parse(self.options, use="write"), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        refuse_no_options(self.options)
        return stream_sink(
            SinkOptions.parse(self.options, use="stream write"),
            schema,
            mark=mark_of(self.options, os.environ),
            overwrite=overwrite,
        )
