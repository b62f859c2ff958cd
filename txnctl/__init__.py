"""The command line, the server process, and the tools that run clusters.

Decides how operators see and run a cluster. Imports every other package of the product; none imports it. Begin with
`cli` for a command, `process.serve` for a server, `launch.dev` for a whole cluster.
"""

import os

# gRPC's own notes on lost connections would stand between our one-line errors; GRPC_VERBOSITY=info brings them back.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
