"""`/metrics`: every metric in one catalogue, read from statistics on request; hot paths do not touch it."""
