"""`txnctl check`: what etcd and the ledgers must agree on, read without touching anything."""
