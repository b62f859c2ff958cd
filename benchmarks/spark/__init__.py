"""Spark in and out of segment topics, beside Spark's own files: `make bench-spark`."""
