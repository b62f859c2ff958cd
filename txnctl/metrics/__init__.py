"""`/metrics`: every metric in one catalogue, read from statistics when somebody asks; no hot path knows of it."""
