"""The commands of `txnctl` that ask a running cluster, a module each; `output` shows answers as tables or JSON."""
