#!/usr/bin/env bash
# Prints the path of a Python of this version (find_python.sh 3.13): one on the PATH, else one of pyenv's. Exits with 3
# and says so where there is none.
set -euo pipefail
version="${1:?a version, as 3.13}"
for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
    if "$python" -c "import sys; sys.exit(sys.version_info[:2] != tuple(map(int, '$version'.split('.'))))" 2>/dev/null; then
        command -v "$python"
        exit 0
    fi
done
echo "no Python $version here" >&2
exit 3
