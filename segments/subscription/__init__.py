"""Subscriptions of one segment: cursors, delivery to readers and stream consumers, and the queue.

Decides which entry goes to which consumer, and which messages count as consumed. Imports `log` and below. Begin with
`subscriptions`, then `cursor` (the acked messages, pure) and either `dispatch` (readers and streams) or `queue` (which
consumer gets each message, pure).
"""
