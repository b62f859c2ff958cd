"""The demo with Spark: the same flights, and their delay statistics by the job `pyspark_txnstore.jobs.flights`."""
