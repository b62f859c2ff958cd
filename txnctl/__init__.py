"""The command line, the server process, and the tools that run clusters."""

import os

# gRPC's own notes on lost connections would stand between our one-line errors; GRPC_VERBOSITY=info brings them back.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
