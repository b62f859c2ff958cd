"""Work on transactions that no request asks for: deadlines, vanished clients, collection, take-over, the clock.

Decides when a transaction is aborted for its client, and when its records are deleted. Imports begins and ends; only
`coordinator` knows it. Begin with `sweeper`, then `take_over`.
"""
