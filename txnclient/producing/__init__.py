"""Sending: from messages to entries in the segments of a topic, in order, each once, within a bounded buffer.

Decides which segment a message goes to and what is sent again. Imports `transactions` and `connection`. Begin with
`producer`, then `channel` (one producer at one segment) and `outbox` (what is sent again, pure).
"""
