"""The measured numbers: `python -m benchmarks` (see docs/performance.md)."""

import txnctl  # noqa: F401  # before anything imports grpc: it sets how grpc minds forks
