#!/bin/sh
# Prints the path of the newest CPython (3.11 or later) on this machine that can make virtual environments. Looks on PATH
# and among pyenv's versions; downloads nothing.
set -eu
best="" best_version=0
for candidate in python3 /usr/bin/python3 python3.11 python3.12 python3.13 python3.14 python3.15 \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
  version=$("$candidate" -c 'import sys, venv, ensurepip; print(sys.version_info[0] * 1000 + sys.version_info[1])' 2>/dev/null) || continue
  if [ "$version" -ge 3011 ] && [ "$version" -gt "$best_version" ]; then best=$candidate; best_version=$version; fi
done
[ -n "$best" ] || { echo "no Python 3.11 or newer on this machine" >&2; exit 3; }
"$best" -c 'import sys; print(sys.executable)'
