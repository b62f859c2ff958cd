"""Queue subscriptions: which consumer receives each message, next and again.

Decides deliveries, redeliveries, delays and what waits for an open transaction. Pure: its callers are in
`segments.subscription`. Begin with the theory of operation in `queue`.
"""
