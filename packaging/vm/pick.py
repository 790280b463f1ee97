"""The entries of a hashed lock for the named packages: ``pick.py LOCK NAME…``. What the lock lacks is left out."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def pick(text: str, names: set[str]) -> list[str]:
    """Whole entries, each with its hashes and without comments."""
    kept, keep = [], False
    for line in text.splitlines():
        if re.match(r"[A-Za-z0-9]", line):
            name = re.split(r"[=\[ ;]", line, maxsplit=1)[0].lower().replace("_", "-")
            keep = name in names
        if keep and line.strip() and not line.lstrip().startswith("#"):
            kept.append(line)
    return kept


if __name__ == "__main__":
    print("\n".join(pick(Path(sys.argv[1]).read_text(), set(sys.argv[2:]))))
