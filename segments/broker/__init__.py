"""The broker process: claims, serves and gives back segments, and answers commands on the wire.

Decides which broker owns which segment. Imports `owner` and below, never `controller`. Begin with `broker`, then
`placement` (which broker owns which segment, pure), `ownership` (keys on a lease) and `broker_service` (commands).
"""
