"""Connections: frames, requests and replies, and the transport over gRPC.

Decides how commands are gathered into frames, and when a peer is given up. Imports the rest of `txnwire`. Begin with
`calls` (the calling side) and `serving`, then `stream`; `grpc_transport` has every setting of gRPC.
"""
