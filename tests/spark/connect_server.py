"""A Spark Connect server in the JVM of the tests: theirs is started already."""

from __future__ import annotations

from pyspark.sql import SparkSession


def connect_url(spark: SparkSession) -> str:
    """For clients in processes of their own. The first call starts the server, which ends with the JVM."""
    jvm = spark._jvm
    assert jvm is not None
    context = spark.sparkContext._jsc.sc()
    service = getattr(getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    if not service.started():
        context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
        context.conf().set("spark.connect.grpc.binding.port", "0")
        service.start(context)
    return f"sc://127.0.0.1:{service.localPort()}"
