#!/usr/bin/env bash
# A Java for Spark, 17 or newer: the one Spark would take (JAVA_HOME's, else PATH's), else Debian's through apt when
# root, else a message that says what to install. It is only looked at, and nothing is written, where there is one.
set -euo pipefail
venv=${1:?usage: ensure_java.sh VENV}
oldest=17

# The first number of a version such as 17.0.15, and the second of 1.8.0_392; nothing where no Java answers.
major_of() {
    "$1" -version 2>&1 | sed -n 's/^[a-z]* version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1
}

recent() {
    major=$(major_of "$1") || return 1
    [ -n "$major" ] && [ "$major" -ge "$oldest" ]
}

if [ -n "${JAVA_HOME:-}" ]; then
    recent "$JAVA_HOME/bin/java" && exit 0
    if [ -x "$JAVA_HOME/bin/java" ]; then
        echo "java: JAVA_HOME=$JAVA_HOME is Java ${major:-?}, Spark needs $oldest or newer" >&2
    else
        echo "java: JAVA_HOME=$JAVA_HOME has no bin/java" >&2
    fi
    # Spark takes it whatever else is installed: nothing that could be installed would help.
    echo "      let JAVA_HOME name another one, or unset it to have the one on PATH taken" >&2
    exit 1
fi
command -v java >/dev/null 2>&1 && recent java && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    if apt-get update -q >"$venv/apt-java.log" 2>&1; then
        for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
            echo "java: installing $package with apt-get"
            apt-get install -y -q --no-install-recommends "$package" >>"$venv/apt-java.log" 2>&1 || continue
            hash -r
            command -v java >/dev/null 2>&1 && recent java && exit 0
            echo "java: $package is installed, but \`java\` is still another one: update-alternatives --config java" >&2
            exit 1
        done
    fi
    echo "java: apt-get failed, see $venv/apt-java.log" >&2
fi
if command -v java >/dev/null 2>&1; then
    echo "java: the one on PATH is Java ${major:-?}, Spark needs $oldest or newer" >&2
else
    echo "java: none on PATH and no JAVA_HOME; Spark needs Java $oldest or newer" >&2
fi
echo "      Debian, Ubuntu: sudo apt-get install openjdk-$oldest-jre-headless" >&2
echo "      elsewhere:      any build of OpenJDK $oldest or 21, such as adoptium.net's; put it on PATH or set JAVA_HOME" >&2
exit 1
