"""The commands of `txnctl` that ask a running cluster, one module each; `output` shows answers as tables or JSON."""
