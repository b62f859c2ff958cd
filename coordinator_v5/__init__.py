"""The transaction coordinator: begin, end, deadlines and collection of transactions, each by one conditional commit.

Also ends transactions that no client ends. Imports `txnstore` and `txnwire`; knows no segment and no broker. Begin with
`coordinator`, then `begins` and `ends`. `ownership` decides which coordinator serves which ids, and `transactions`
(pure) holds its transactions in memory. The rooms: `background` (timeouts, vanished clients, collection, take-over) and
`naming` (named transactions and transaction keys).
"""
