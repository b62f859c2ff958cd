"""The work of simulated clients, each kind with a judge of its promises.

Decides what clients send, receive and ack. Imports `clients` and below. Begin with `workload`.
"""
