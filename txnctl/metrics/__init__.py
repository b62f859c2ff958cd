"""`/metrics`: every metric in one catalogue, read from statistics on request; hot paths do not touch it.

Decides the names and units of metrics. Imports the statistics of every role. Begin with `catalogue`.
"""
