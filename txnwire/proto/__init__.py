"""The generated modules of `txn.proto`: every command between clients and servers.

Decides the fields on the wire; imports protobuf alone. Begin with `txn.proto`; `make proto` generates the rest.
"""
