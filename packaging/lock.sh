#!/bin/sh
# Writes the hashed locks anew, for all Pythons from 3.11 on. No index and no file address is recorded in them.
set -eu
cd "$(dirname "$0")/.."
compile="${VENV:-.venv}/bin/uv pip compile -q --universal --generate-hashes --no-annotate --no-header --python-version 3.11"
# the widest first: mitmproxy caps some versions, and both locks must agree
$compile pyproject.toml packaging/build.in --all-extras --group dev -o requirements-dev.lock
$compile pyproject.toml packaging/build.in --extra tracerd -c requirements-dev.lock -o requirements.lock
