"""How a client reaches a cluster: connections to servers, owners and roles, topics' layouts, deadlines of calls.

Decides which server to ask, for how long, and when to try another. Imports `txnwire` alone. Begin with `session` (the
shared state of one client), then `directory` (which server has which role) and `links` (connections).
"""
