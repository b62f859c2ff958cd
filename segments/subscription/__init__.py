"""Subscriptions of one segment: cursors, delivery to readers and stream consumers, and the queue.

Decides which entry goes to which consumer, and what counts as consumed. Imports `log` and below. Begin with
`subscriptions`, then `cursor` (what is acked, pure) and either `dispatch` (readers and streams) or `queue` (which
message goes to whom, pure).
"""
