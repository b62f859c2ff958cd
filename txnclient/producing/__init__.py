"""Sending: from messages to entries in the segments of a topic, in order, each once, within a bounded buffer.

Decides which segment each message goes to and which entries are sent again. Imports `transactions` and `connection`.
Begin with `producer_impl`, then the room `channels`: `channels.channel` (one producer at one segment) and
`channels.outbox` (order and resends, pure).
"""
