"""Subscriptions of one segment: cursors, delivery to readers and stream consumers, and the queue.

Decides which entry goes to which consumer, and which messages count as consumed. Imports `log` and below. Begin with
`subscriptions`, then the theories of operation in `cursor` (the acked messages, pure) and in `queue` (which consumer
gets each message, pure). Readers and streams are in `dispatch`.
"""
