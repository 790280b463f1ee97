"""`caisson-run bundle …`: the options. Every body imports what it needs when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from caisson_runner.options import json_option


@click.group()
def bundle() -> None:
    """Look into evidence bundles."""


@bundle.command("show")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Also what is usually noise: library look-ups, caches.")
@json_option
def bundle_show(path: Path, everything: bool, as_json: bool) -> None:
    """Print what the agent did: processes, files written, tests touched, connects tried, the verdict.

    \b
    caisson-run bundle show caisson-out/…/runs/E1-cheat-conftest
    """
    from caisson_runner.commands.bundle import bundle_show_command

    sys.exit(bundle_show_command(path, everything, as_json))


KINDS = ("fork", "exec", "exit", "open", "connect", "change", "look", "pass", "cross", "socket")


@bundle.command("events")
@click.argument("path", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option("--pid", type=click.IntRange(min=0), help="Only of this process.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only of this kind. Repeatable.")
@click.option("--path", "paths", multiple=True, metavar="GLOB", help="Only about such a path; * spans /. Repeatable.")
@click.option("--errno", "errors", multiple=True, metavar="ERRNO", help="Only with this result: ENOENT, 2. Repeatable.")
@click.option("--failed", is_flag=True, help="Only what was refused or failed.")
@click.option("--start", default="0", metavar="TIME", help="Only from then on: boot clock in ns, or +SECONDS.")
@click.option("--end", metavar="TIME", help="Only before then.")
@click.option("--agent", "harness", flag_value=False, default=None, type=bool, help="Only what the agent did.")
@click.option("--harness", "harness", flag_value=True, type=bool, help="Only what the harness's own check did.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N of them.")
@click.option("--json", "as_json", is_flag=True, help="JSON Lines: an event a line, as `bundle export -f jsonl`.")
def bundle_events(
    path: Path,
    pid: int | None,
    kinds: Sequence[str],
    paths: Sequence[str],
    errors: Sequence[str],
    failed: bool,
    start: str,
    end: str | None,
    harness: bool | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print the events of a bundle's record, as it is read: a record of any length takes no more memory.

    Exit code 0, also when no event is as asked for.

    \b
    caisson-run bundle events my-run --kind exec --agent
    caisson-run bundle events my-run --path '/solution*' --failed
    caisson-run bundle events my-run --start +1.5 --end +2 --json
    """
    from caisson_runner.commands.events import bundle_events_command

    sys.exit(bundle_events_command(path, pid, kinds, paths, errors, failed, start, end, harness, limit, as_json))


@bundle.command("diff")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Also caches, scratch files and reads of the system.")
@json_option
def bundle_diff(a: Path, b: Path, everything: bool, as_json: bool) -> None:
    """Say what the agent of one bundle did that the other's did not, and what came of it.

    Pids, times and how often are not compared. Exit code 0 when nothing differs, 1 when something does, 2 when one
    of them is no bundle.

    \b
    caisson-run bundle diff runs/E1-honest-fix runs/E1-cheat-conftest
    """
    from caisson_runner.commands.difference import bundle_diff_command

    sys.exit(bundle_diff_command(a, b, everything, as_json))


@bundle.command("verify")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--key", default="", metavar="KEY", help="Who must have signed it: a key id, or a public key's PEM file.")
@json_option
def bundle_verify(path: Path, key: str, as_json: bool) -> None:
    """Check that a bundle is what was signed; name the first file, and byte, that was changed.

    \b
    caisson-run bundle verify caisson-out/…/runs/E1-cheat-conftest
    caisson-run bundle verify their-bundle --key their.pub
    """
    from caisson_runner.commands.bundle import bundle_verify_command

    sys.exit(bundle_verify_command(path, key, as_json))


@bundle.command("key")
def bundle_key() -> None:
    """Print the public key that bundles made here are signed with, for those who are to check them."""
    from caisson_runner.commands.bundle import bundle_key_command

    sys.exit(bundle_key_command())


FORMATS = ("jsonl", "ocsf", "ecs", "tetragon", "perfetto", "csv", "parquet", "harbor", "atif")


@bundle.command("export")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-f", "--format", "name", type=click.Choice(FORMATS), required=True, help="See docs/bundle.md.")
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), help="A new file (harbor: folder). [stdout]")
@click.option("--start", type=click.IntRange(min=0), default=0, metavar="NS", help="Only events from this time on.")
@click.option("--end", type=click.IntRange(min=0), metavar="NS", help="Only events before this time.")
@click.option("--pid", type=click.IntRange(min=0), help="Only events of this process.")
@click.option(
    "--trajectory",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="atif: the agent's own trajectory, to have what was witnessed put beside what it claims.",
)
def bundle_export(
    path: Path, name: str, out: Path | None, start: int, end: int | None, pid: int | None, trajectory: Path | None
) -> None:
    """Write a bundle in a format of other tools. Times are CLOCK_BOOTTIME in ns, as in the record.

    \b
    caisson-run bundle export my-run -f perfetto -o trace.json
    caisson-run bundle export my-run -f ocsf | jq .class_uid
    """
    from caisson_runner.commands.bundle import bundle_export_command

    sys.exit(bundle_export_command(path, name, out, start, end, pid, trajectory))
