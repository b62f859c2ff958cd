"""The wire: ids, names, errors, entries, commands and connections, shared by all processes and clients.

Decides wire formats and which numbers a peer may send. Imports no package of the project. Begin with `ports` (the small
interfaces for all I/O), then `ids`, `errors`, `entry` (the format of a batch) and the room `transport` (connections).
"""

import os

# ▲ gRPC's handlers of a fork start its threads in the child, on connections that are the parent's: the child crashes at
# times, whatever it does. They also warn at every start of a process. It is read when grpc is first used.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
