"""Subscriptions of one segment: cursors, delivery to readers and stream consumers, and the queue.

Decides which entry goes to which consumer, and which messages count as consumed. Imports `log` and below. Begin with
`subscriptions`. The pure parts are the rooms `cursors` (the acked messages) and `queueing` (which consumer gets each
message). Readers and streams are in `dispatch`.
"""
