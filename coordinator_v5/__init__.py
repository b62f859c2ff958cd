"""The transaction coordinator: begin, end, deadlines and collection of transactions, each by one conditional commit.

Decides how a transaction ends when nobody says so. Imports `txnstore` and `txnwire`; knows no segment and no broker.
Begin with `coordinator`, then `begins`, `ends`, `sweeper` (what happens by itself) and `collector`; `ownership` and
`takeover` tell which coordinator serves which ids, and `transactions` (pure) what it keeps of them.
"""
