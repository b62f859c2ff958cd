"""Broken rules of brokers and controllers: ledgers, ownership, layouts, subscriptions."""
