"""`caisson-run bundle show`, `verify`, `key` and `export`."""

from __future__ import annotations

import sys
from pathlib import Path

from caisson_runner.commands.common import emit
from caisson_runner.report.text import printable


def bundle_show_command(path: Path, everything: bool, as_json: bool) -> int:
    """`caisson-run bundle show`."""
    from caisson_runner.bundle import Bundle, render, summary_json
    from caisson_runner.bundle.check import trouble
    from caisson_runner.bundle.errors import BundleDamaged

    bundle = Bundle.open(path)
    problem = trouble(path)
    if problem:
        print(f"caisson-run: NOT AS IT WAS SIGNED: {printable(problem)}; what follows is no evidence", file=sys.stderr)
    if as_json:
        emit(summary_json(bundle, everything) | {"damaged": problem or None})
    else:
        render(bundle, everything)
    return BundleDamaged.exit_code if problem else 0


def bundle_verify_command(path: Path, key: str, as_json: bool) -> int:
    """`caisson-run bundle verify`."""
    from caisson_runner.bundle.check import verify
    from caisson_runner.bundle.errors import KeyFault, NoKey, NotTrusted
    from caisson_runner.bundle.keys import known, read_public

    try:
        only = read_public(Path(key)) if key and not _is_keyid(key) else None
    except KeyFault as error:
        raise NoKey(f"{error}; --key takes a public key's file or a key id of 64 digits") from None
    checked = verify(path, known(), only)
    if _is_keyid(key) and key != checked.key.keyid:
        raise NotTrusted(f"{path} is whole, but signed by {checked.key.keyid}, not by {key}")
    witness = checked.witness
    if as_json:
        emit(
            {
                "bundle": str(path),
                "files": checked.files,
                "keyid": checked.key.keyid,
                "signer": checked.signer or None,
                "asked_for": bool(key),
                "witness": witness,
                "subject": checked.statement["subject"],
            }
        )
        return 0
    whose = "the key that was asked for" if key else checked.signer or "a key that is not known here"
    print(f"{path}: {checked.files} files, all as they were signed")
    print(f"signed by  {checked.key.keyid} ({printable(whose, 80)})")
    if not key and not checked.signer:
        print("           whoever has this key vouches for all of it: ask them for their key id, then give it as --key")
    complete = "complete" if witness["complete"] else f"NOT COMPLETE: {printable(str(witness.get('reason')), 200)}"
    print(f"record     {witness['recorded']} events, {complete}")
    return 0


def _is_keyid(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def bundle_key_command() -> int:
    """`caisson-run bundle key`."""
    from caisson_runner.bundle.keys import own, publish

    signer = own()
    print(f"key id  {signer.public.keyid}")
    print(f"file    {publish(signer)}")
    print(signer.public.pem, end="")
    return 0


def bundle_export_command(
    path: Path, name: str, out: Path | None, start: int, end: int | None, pid: int | None, trajectory: Path | None
) -> int:
    """`caisson-run bundle export`."""
    from caisson_runner.bundle import Bundle
    from caisson_runner.export import FORMATS, Scene, export
    from caisson_runner.export.errors import ExportError

    bundle, form = Bundle.open(path), FORMATS[name]
    picked = bool(start or pid is not None or end is not None)
    if form.folder is not None:
        if out is None or picked or trajectory is not None:
            raise ExportError(f"{name} is a folder of the whole run: name a new one with --output, and no other option")
        form.folder(bundle, Scene.of(bundle), out)
        return 0
    claimed = trajectory.read_bytes() if trajectory is not None else None
    records = bundle.records(start, end, pid)
    if out is None:
        if form.binary is not None and sys.stdout.isatty():
            raise ExportError(f"{name} is not for a terminal: name a file with --output")
        export(bundle, name, sys.stdout.buffer, records=records, trajectory=claimed)
        sys.stdout.buffer.flush()
        return 0
    try:
        file = out.open("xb")
    except FileExistsError:
        raise ExportError(f"{out} exists already: name a new file") from None
    try:
        with file:
            export(bundle, name, file, records=records, trajectory=claimed)
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    return 0
