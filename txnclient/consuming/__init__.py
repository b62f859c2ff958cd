"""Receiving through a subscription: which topics and segments a consumer reads, and what an application calls.

Decides which segments a consumer follows. Imports `producing` (dead letters are sends), `transactions` and
`connection`. Its rooms: `received` (messages and what is known of them), `places` (where reading starts and stands),
`feeds` (one segment). Begin with `consumer_impl`, then `feeds.feed` and `feeds.inbox` (the buffer).
"""
