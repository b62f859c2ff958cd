"""The demo with Spark: the same flights, and their delay statistics by the job `pyspark_txnstore.jobs.flights`.

Decides when Spark and brokers are killed, and checks the totals. Imports `txnctl.demo` and the job. Begin with `demo`.
"""
