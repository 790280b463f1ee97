"""The formats there are, and writing one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from caisson_proto.record import Record

from caisson_runner.bundle.reader import Bundle
from caisson_runner.export import atif, ecs, harbor, jsonl, ocsf, perfetto, table, tetragon
from caisson_runner.export.errors import ExportError
from caisson_runner.export.scene import Scene

Lines = Callable[[Scene, Iterable[Record]], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Format:
    """One format: ``lines`` for text that streams, ``binary`` for files that people do not read, or a folder."""

    title: str
    lines: Lines | None = None
    binary: Callable[[Scene, Iterable[Record], BinaryIO], None] | None = None
    folder: Callable[[Bundle, Scene, Path], Path] | None = None


FORMATS: Final[Mapping[str, Format]] = {
    "jsonl": Format("the whole record, one event a line", jsonl.lines),
    "ocsf": Format("Open Cybersecurity Schema Framework 1.4 events", ocsf.lines),
    "ecs": Format("Elastic Common Schema 8.17 documents", ecs.lines),
    "tetragon": Format("Tetragon's JSON events", tetragon.lines),
    "perfetto": Format("a Chrome trace, for ui.perfetto.dev", perfetto.lines),
    "csv": Format("the whole record as a table", table.csv_lines),
    "parquet": Format("the same table for data frames (needs pyarrow)", binary=table.write_parquet),
    "harbor": Format("a Harbor job's folder", folder=harbor.write),
    "atif": Format("an ATIF 1.8 trajectory", atif.lines),
}


def export(
    bundle: Bundle,
    name: str,
    out: BinaryIO,
    *,
    records: Iterable[Record] | None = None,
    trajectory: bytes | None = None,
) -> None:
    """Write one of `FORMATS` that is no folder, in bounded memory. ``records`` are all of the bundle's unless given.

    ``trajectory`` is an agent's own, for ``atif``.
    """
    form, scene = FORMATS[name], Scene.of(bundle)
    records = bundle.records() if records is None else records
    if trajectory is not None:
        if name != "atif":
            raise ExportError(f"a trajectory goes with the format atif, not with {name}")
        out.write(atif.document(scene, records, trajectory))
    elif form.lines is not None:
        for line in form.lines(scene, records):
            out.write(line)
    elif form.binary is not None:
        form.binary(scene, records, out)
    else:
        raise ExportError(f"{name} is a folder: name one with --output")
