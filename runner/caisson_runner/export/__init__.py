"""A bundle in other people's formats. Every exporter is thin and pure: records in, lines out, one at a time.

The record in the bundle is the truth; nothing here adds to it. What came from a box is bytes: it is shown in the
bundle's reversible escape, cut where a format is for looking (see `text`), and never cut in JSONL, CSV and Parquet.
"""

from caisson_runner.export.formats import FORMATS, Format, export
from caisson_runner.export.scene import Scene

__all__ = ["FORMATS", "Format", "Scene", "export"]
