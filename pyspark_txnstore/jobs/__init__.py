"""Jobs over segment topics. Each runs on its own: `spark-submit .../pyspark_txnstore/jobs/<job>.py --help`."""
