"""Jobs over segment topics, each to be run by itself: `spark-submit .../pyspark_txnstore/jobs/<job>.py --help`."""
