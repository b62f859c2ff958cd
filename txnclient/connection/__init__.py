"""How a client reaches a cluster: connections to servers, who serves what, topics' layouts, deadlines of calls.

Decides whom to ask, for how long, and when to ask somebody else. Imports `txnwire` alone. Begin with `session` (what
everything of one client shares), then `directory` (who serves what) and `links` (connections).
"""
