"""Jobs over segment topics. Each runs on its own: `spark-submit .../pyspark_txnstore/jobs/<job>.py --help`.

A job decides what it computes, and nothing about transactions. Imports the other rooms, as any Spark program does.
Begin with `flights`.
"""
