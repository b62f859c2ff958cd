"""The path of a send through the owner of its segment: admission, dedup, op record, append, sync, answer.

Decides in which order entries become durable and are acked. Imports `ledgers` and the modules of `log`. Begin with the
theory of operation in `send_order` (the steps of a send), then `pipeline`, which handles every send, and `appender`.
"""
