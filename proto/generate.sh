#!/bin/sh
# Writes the Python side of caisson/v1/tracerd.proto into caisson_proto/ (or below the directory given).
# Usage: proto/generate.sh [DIRECTORY]      needs grpcio-tools; PYTHON names the interpreter that has it
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
out=${1:-$here}
python=${PYTHON:-python3}
mkdir -p "$out/caisson_proto"
"$python" -m grpc_tools.protoc "-Icaisson_proto=$here/caisson/v1" \
    "--python_out=$out" "--pyi_out=$out" "--grpc_python_out=$out" caisson_proto/tracerd.proto
PYTHONPATH="$out" "$python" "$here/grpc_types.py" "$out/caisson_proto"
