"""One consumed segment: deliveries, acks, time limits, dead letters, and the turns in which segments are served.

Decides which messages the application receives next and which acks are sent again. Imports `received` and `places`.
Begin with `feed` (the connection to the segment's owner), then `inbox` (the buffer, pure) and `acks`.
"""
