#!/usr/bin/env bash
# An operator's evening: look, free a queue, split a topic under load, read again from the beginning, back up, check.
#
#   txnctl dev &                                  # a cluster on this machine
#   examples/operators_evening.sh FOLDER          # the folder is for a backup
#
# TXN_URL names the cluster where it is not txn://127.0.0.1:6650. FORGOTTEN_AFTER is how long a transaction of this topic
# may be open before it is given up: longer than the longest of those that work. ETCD and DATA, where they are given,
# are those of its brokers: then there is a backup and a check, too. Everything here may be done while the cluster is in
# use, and while servers are killed and come back. What only looks, or says how something is to be, may be given again
# where nobody answers (`again`). What is consumed is printed before it is acked: so a line may come twice, and none is
# missing.
set -euo pipefail

folder=${1:?usage: operators_evening.sh FOLDER}
orders=topic://public/evening/orders
say() { echo "== $*"; }
again() {
    for _ in $(seq 30); do
        "$@" && return
        sleep 1
    done
    return 1
}
read_all() { # into a file, which then has each of the 80 orders
    touch "$1"
    while [ "$(sort -u "$1" | wc -l)" -lt 80 ]; do
        txnctl consume $orders --subscription billing --count 80 --idle 2 >>"$1" || sleep 1
    done
}

say "a topic, and orders of the day: 40 in transactions of 10"
again txnctl topics create $orders
seq 1 40 | sed 's/.*/{"key": "customer-&", "value": "order &"}/' | txnctl produce $orders --input json --txn 10

say "who holds readers back? the oldest one is given up"
hanging=$(again txnctl transactions hanging --older-than "${FORGOTTEN_AFTER:-1m}" -o json | python3 -c 'import json, sys; print(*{row["txn"] for row in json.load(sys.stdin) if "/evening/" in row["segment"]})')
for transaction in $hanging; do
    again txnctl transactions abort "$transaction"
done

say "the topic is busy: two segments instead of one"
case $(again txnctl topics describe $orders -o json) in
    *orders/0000-7fff-1*) ;; # done before
    *) again txnctl topics split public/evening/orders/0000-ffff-0 ;;
esac
seq 41 80 | sed 's/.*/{"key": "customer-&", "value": "order &"}/' | txnctl produce $orders --input json --txn 10
again txnctl topics describe $orders

say "billing has read all, with a mistake: once more from the beginning"
read_all "$folder/first"
again txnctl subscriptions seek $orders billing earliest
read_all "$folder/again"
again txnctl subscriptions describe $orders billing

if [ -n "${ETCD:-}" ] && [ -n "${DATA:-}" ]; then
    say "a backup of it, and is everything in order?"
    again txnctl backup "$folder/backup" --etcd "$ETCD" --data-dir "$DATA"
    again txnctl check --etcd "$ETCD" --data-dir "$DATA"
fi

say "the evening's numbers"
again txnctl brokers list
again txnctl transactions stats
sort -u "$folder/first" | wc -l
sort -u "$folder/again" | wc -l
