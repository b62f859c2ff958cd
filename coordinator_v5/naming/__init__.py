"""Names and keys of transactions: one transaction for all who begin a name, one client for each key.

Decides who joins a named transaction, how many names a namespace has and when they expire, and which client of a key
is served. Imports begins and ends; only `coordinator` and `service` know it. Begin with `names`, then
`transaction_keys`.
"""
