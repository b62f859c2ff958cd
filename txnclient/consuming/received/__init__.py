"""Received messages: their bits in an entry, their segments, large values from pieces, what is not acked yet.

Decides which messages were handed out and not acked. Pure: no connection, no task. Begin with `message`, then
`delivered`.
"""
