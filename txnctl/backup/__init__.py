"""Backups of a whole cluster, and putting them back: etcd first, then the ledgers.

    DIR/txnstore-backups.json                       whose backups these are
    DIR/backups/<number>-<time>/etcd.snapshot       as `etcdctl snapshot save` writes it
    DIR/backups/<number>-<time>/manifest.json       every file with its size and SHA-256; written last
    DIR/ledgers/<segment>/<ledger>.<kind>.<hash>    contents of ledger files, shared by all backups

▲ Etcd is copied first. So the ledgers hold every entry that the copy of etcd knows, and a repair after the restore
aborts what etcd does not know as committed. In the other order a transaction could be committed in etcd and lack
entries in the files.

Decides which files a backup has, and when it counts. Begin with `taking`. Imports `checking` and everything below it.
"""
