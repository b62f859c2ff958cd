"""`txnctl check`: checks that etcd and the ledgers agree, and changes nothing."""
