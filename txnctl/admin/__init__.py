"""The admin role: answers an operator's questions from etcd, the directory and the owners of segments.

Begin with `admin_requests`, which routes a question by its name, then `admin`.
"""
