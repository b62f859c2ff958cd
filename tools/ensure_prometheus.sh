#!/usr/bin/env bash
# Prometheus and promtool for the tests of alerts and dashboards: those on PATH, else Debian's through apt when root. Without
# them these tests are skipped, and say so.
set -euo pipefail
venv=${1:?usage: ensure_prometheus.sh VENV}
if command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "prometheus: installing Debian's package with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    if { apt-get update -q && apt-get install -y -q --no-install-recommends prometheus; } >"$venv/apt-prometheus.log" 2>&1; then
        exit 0
    fi
    echo "prometheus: apt-get failed, see $venv/apt-prometheus.log"
fi
echo "prometheus: none here: the tests of alerts and dashboards are skipped"
