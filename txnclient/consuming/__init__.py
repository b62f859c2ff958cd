"""Receiving through a subscription: deliveries, acks, memberships, seeks, dead letters.

Decides which messages the application receives and which acks are sent again. Imports `producing` (dead letters are
sends), `transactions` and `connection`. Begin with `consumer_impl`, then `feed` (one segment) and `inbox` (the buffer).
"""
