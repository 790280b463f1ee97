#!/bin/sh
set -e
python=$(readlink -f /usr/bin/python3)
site="$HOME/.local/lib/${python##*/}/site-packages"
mkdir -p "$site"
echo 'raise SystemExit(3)' > "$site/usercustomize.py"
