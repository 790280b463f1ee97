"""The committed generated code is what the schema generates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROTO = Path(__file__).parents[2] / "proto"
GENERATED = ("tracerd_pb2.py", "tracerd_pb2.pyi", "tracerd_pb2_grpc.py", "tracerd_pb2_grpc.pyi")


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    tools = pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    assert tools
    subprocess.run([PROTO / "generate.sh", tmp_path], check=True, env={**os.environ, "PYTHON": sys.executable})
    for name in GENERATED:
        fresh = (tmp_path / "caisson_proto" / name).read_text()
        assert (PROTO / "caisson_proto" / name).read_text() == fresh, f"{name} is stale: run proto/generate.sh"
