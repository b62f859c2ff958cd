"""The admin role: answers an operator's questions from etcd, the directory and the owners of segments.

Decides what an answer contains. Imports `segments`, `coordinator_v5` and `txnstore`. Begin with `admin_requests`, which
routes a question by its name, then `admin`.
"""
