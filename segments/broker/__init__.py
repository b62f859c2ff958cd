"""The broker process: which segments it claims, gives back and serves, and its commands on the wire.

Decides which broker owns which segment. Imports `owner` and below, never `controller`. Begin with `broker`, then
`placement` (who should own what, pure), `ownership` (keys on a lease) and `broker_service` (commands).
"""
