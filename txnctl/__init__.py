"""The command line, the server process, and the tools that run clusters."""

import os

# This process starts others by exec and never forks with channels open (DESIGN §11); gRPC's fork handlers would only
# write a warning at every start of a child. The variable is read when grpc is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# gRPC's own notes on lost connections would stand between our one-line errors; GRPC_VERBOSITY=info brings them back.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
