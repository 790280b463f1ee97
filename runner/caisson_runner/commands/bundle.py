"""`caisson-run bundle show`, `verify` and `key`."""

from __future__ import annotations

from pathlib import Path

from caisson_runner.commands.common import emit
from caisson_runner.report.text import printable


def bundle_show_command(path: Path, everything: bool, as_json: bool) -> int:
    """`caisson-run bundle show`."""
    from caisson_runner.bundle import Bundle, render, summary_json

    bundle = Bundle.open(path)
    if as_json:
        emit(summary_json(bundle, everything))
    else:
        render(bundle, everything)
    return 0


def bundle_verify_command(path: Path, key: str, as_json: bool) -> int:
    """`caisson-run bundle verify`."""
    from caisson_runner.bundle.check import verify
    from caisson_runner.bundle.errors import NotTrusted
    from caisson_runner.bundle.keys import known, read_public

    only = read_public(Path(key)) if key and not _is_keyid(key) else None
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
    complete = "complete" if witness["complete"] else f"NOT COMPLETE: {printable(witness['reason'], 200)}"
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
