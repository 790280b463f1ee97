"""What the red team's tests share beside fixtures."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

needs_boxes = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")

Try = Callable[..., tuple[int, dict[str, Any]]]
"""Globs of routes to the exit code and the report."""
