"""At which depths of the cgroup tree attached containers lie: the list the programs go through (maps.h)."""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path
from typing import Final

from caisson_tracerd.bpfsys import Map
from caisson_tracerd.errors import TooMany

MOST: Final = 4
"""``ATTACH_LEVELS`` in ``bpf/lib/sizes.h``."""


class Levels:
    """The list in the kernel. It ends at the first 0; what is in use is never missing while it changes."""

    def __init__(self, pin: Path, boxes_level: int) -> None:
        self._map = Map.at(pin, 4)
        self._boxes_level = boxes_level
        self._listed: list[int] = []

    def set(self, wanted: Collection[int]) -> None:
        """Make the list hold these depths. TooMany when they do not fit; the list is as before then."""
        kept = [level for level in self._listed if level in wanted]  # order stays: rewriting moves levels only forward
        kept += sorted(set(wanted) - set(kept) - {self._boxes_level})
        if len(kept) > MOST:
            raise TooMany(f"attached cgroups lie at {MOST} different depths already; drop one of them")
        for place in range(MOST):
            self._map.put(place, struct.pack("I", kept[place] if place < len(kept) else 0))
        self._listed = kept

    def close(self) -> None:
        """The list stays in the kernel."""
        self._map.close()
