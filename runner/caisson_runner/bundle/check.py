"""`bundle verify`: is this what was signed, by whom, and if not, which byte of which file is the first that differs.

Needs no root, no daemon and no network. From the outside in: the statement's signature, then the manifest by the
statement, then every file by the manifest. Nothing is believed before what vouches for it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caisson_runner.bundle import statement as statements
from caisson_runner.bundle.canonical import escape, loads
from caisson_runner.bundle.digests import Altered, Entry, entry_of, entry_of_bytes, first_difference
from caisson_runner.bundle.dsse import Envelope
from caisson_runner.bundle.errors import BundleDamaged, BundleError, NotTrusted
from caisson_runner.bundle.keys import PublicKey
from caisson_runner.bundle.reader import Bundle, contents, regular
from caisson_runner.bundle.recording import EVENTS, check_record
from caisson_runner.bundle.statement import SEAL, STATEMENT
from caisson_runner.bundle.writer import COVERAGE, MANIFEST, list_files


@dataclass(frozen=True, slots=True)
class Checked:
    """A bundle that is what was signed. ``signer`` is where the key is known from; empty when it is not known here."""

    files: int
    key: PublicKey
    signer: str
    statement: dict[str, Any]

    @property
    def witness(self) -> dict[str, Any]:
        """The counters that were signed."""
        return dict(self.statement["predicate"]["witness"])


def verify(root: Path, known: Iterable[tuple[str, PublicKey]] = (), only: PublicKey | None = None) -> Checked:
    """Check a bundle whole.

    Raises `BundleDamaged` with the first file, and where it can be told its first byte, that is not as it was signed;
    `NotTrusted` when ``only`` is given and another key signed; `BundleError` when there is no bundle.
    """
    bundle, payload, key, manifest = _as_signed(root)
    _agrees(bundle, payload, manifest)
    if only is not None and only != key:
        raise NotTrusted(f"{root} is whole, but signed by {key.keyid}, not by {only.keyid}")
    signer = next((where for where, one in known if one == key), "")
    return Checked(len(bundle.files), key, signer, payload)


def trouble(root: Path) -> str:
    """What is not as it was signed, or nothing. Every file is read; what files say is not compared: see `verify`."""
    try:
        _as_signed(root)
    except BundleDamaged as problem:
        return str(problem)
    return ""


def _as_signed(root: Path) -> tuple[Bundle, dict[str, Any], PublicKey, bytes]:
    """The bundle, its statement's payload, who signed that, and the manifest; each file is what was signed."""
    if not (root / STATEMENT).exists() and (root / MANIFEST).exists():
        Bundle.open(root)  # says so when it is of an older form, which had no statement
    envelope = _read(root, STATEMENT)
    seal = _read(root, SEAL)
    payload, key = _statement(envelope, seal)
    own = Entry.parse(payload["predicate"]["caisson"]["manifest"])
    manifest = _read(root, MANIFEST)
    if entry_of_bytes(manifest) != own:
        raise _changed(MANIFEST, first_difference(io.BytesIO(manifest), own), len(manifest), own)
    bundle = Bundle.open(root)
    _files(bundle)
    return bundle, payload, key, manifest


def _read(root: Path, name: str) -> bytes:
    try:
        return contents(root / name)
    except FileNotFoundError:
        if not root.is_dir() or not any((root / one).exists() for one in (STATEMENT, SEAL, MANIFEST)):
            raise BundleError(f"{root} is no bundle: it has no {MANIFEST}") from None
        raise BundleDamaged(f"{name} is missing from the bundle {root}", name) from None
    except OSError as error:
        raise BundleDamaged(f"{name} in {root} cannot be read: {error.strerror}", name) from None


def _statement(text: bytes, seal: bytes) -> tuple[dict[str, Any], PublicKey]:
    """The payload and the key that signed it; else the statement's file or its seal was changed."""
    found = _signed(text)
    if found is None:
        raise _unsigned(text, seal)
    expected = statements.seal(text)
    if seal != expected:
        raise _changed(SEAL, _first_byte(seal, expected), len(seal), entry_of_bytes(expected))
    return found


def _signed(text: bytes) -> tuple[dict[str, Any], PublicKey] | None:
    try:
        envelope = Envelope.parse(text, STATEMENT)
        payload = statements.parse(envelope.payload)
    except BundleError:
        return None
    key = PublicKey.parse(payload["predicate"]["caisson"]["key"])
    return (payload, key) if envelope.signed_by(key) else None


def _unsigned(text: bytes, seal: bytes) -> BundleDamaged:
    """Which byte of a statement that is not signed (any more) was changed: what puts it back makes it signed again."""
    entry = statements.sealed(seal)
    where = first_difference(io.BytesIO(text), entry) if entry is not None else None
    if where is not None and where.was is not None:
        mended = text[: where.at] + where.was + text[where.end :]
        if _signed(mended) is not None:
            return _changed(STATEMENT, where, len(text), entry)
    if entry is None or where is None:
        return BundleDamaged(
            f"{STATEMENT} is not what its key signed; where it was changed, {SEAL} cannot tell", STATEMENT
        )
    return _changed(STATEMENT, where, len(text), entry)


def _first_byte(now: bytes, was: bytes) -> Altered:
    at = next((at for at, (one, two) in enumerate(zip(now, was, strict=False)) if one != two), min(len(now), len(was)))
    if at < min(len(now), len(was)):
        return Altered(at, at + 1, was[at : at + 1], now[at : at + 1])
    return Altered(at, at + 1)


def _files(bundle: Bundle) -> None:
    """Every file by the manifest, in the order of their names."""
    try:
        there = set(list_files(bundle.root)) - {MANIFEST, STATEMENT, SEAL}
    except BundleError as error:
        raise BundleDamaged(str(error), str(error).partition(" in ")[0]) from None
    for name in sorted(there | set(bundle.files)):
        if name not in bundle.files:
            raise BundleDamaged(_extra(bundle, name, there), name)
        if name not in there:
            raise BundleDamaged(_missing(bundle, name, there), name)
        entry = bundle.files[name]
        with (bundle.root / name).open("rb") as file:
            where = entry.difference(file)
            if where is not None:
                raise _changed(name, where, (bundle.root / name).stat().st_size, entry)
    for folder, folders, files in os.walk(bundle.root):
        if not folders and not files:
            name = Path(folder).relative_to(bundle.root).as_posix()
            raise BundleDamaged(f"the empty folder {escape(os.fsencode(name))} was added to {bundle.root}", name)


def _extra(bundle: Bundle, name: str, there: set[str]) -> str:
    gone = [one for one in sorted(set(bundle.files) - there) if _same(bundle, name, one)]
    if gone:
        return f"{gone[0]} was renamed to {name} in the bundle {bundle.root}"
    return f"{name} was added to the bundle {bundle.root}: it is not in its manifest"


def _missing(bundle: Bundle, name: str, there: set[str]) -> str:
    found = [one for one in sorted(there - set(bundle.files)) if _same(bundle, one, name)]
    if found:
        return f"{name} was renamed to {found[0]} in the bundle {bundle.root}"
    return f"{name} is missing from the bundle {bundle.root}"


def _same(bundle: Bundle, there: str, listed: str) -> bool:
    path, entry = bundle.root / there, bundle.files[listed]
    return path.stat().st_size == entry.size and entry_of(path) == entry


def _changed(name: str, where: Altered | None, size: int, entry: Entry | None) -> BundleDamaged:
    said = f"{name} was changed: {where}"
    if entry is not None and size != entry.size:
        said += f"; it had {entry.size} bytes and has {size}"
    return BundleDamaged(said, name, where.at if where is not None and where.exact else None)


def _agrees(bundle: Bundle, payload: dict[str, Any], manifest: bytes) -> None:
    """What was signed is what the bundle holds: a summary that differs from what it sums up is no evidence.

    The statement is made anew from the files and each of its parts compared. Parts that we do not know are let be.
    """
    index = bundle.index()
    recorded = payload["predicate"]["witness"]["recorded"]
    if recorded != index.records:
        raise BundleDamaged(f"{STATEMENT} speaks of {recorded} records, the bundle has {index.records}", STATEMENT)
    if index.frames or bundle.has(EVENTS):
        with regular(bundle.root / EVENTS).open("rb") as file:
            check_record(file, index)
    key = PublicKey.parse(payload["predicate"]["caisson"]["key"])
    try:
        text = statements.statement(bundle.files, manifest, lambda name: _table(bundle, name), key, index.records)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BundleDamaged(f"run, verdict or coverage is of another shape: {type(error).__name__}", COVERAGE) from None
    made = loads(text, STATEMENT)
    if payload["subject"] != made["subject"]:
        raise BundleDamaged(f"{STATEMENT} and {MANIFEST} differ on what the bundle's files are", STATEMENT)
    for name, part in made["predicate"].items():
        signed = payload["predicate"].get(name)
        for field, value in part.items():
            if not isinstance(signed, dict) or field not in signed or signed[field] != value:
                raise BundleDamaged(f"{STATEMENT} and the bundle's files differ on {name}.{field}", STATEMENT)
    _balances(made["predicate"]["witness"])


def _balances(witness: dict[str, Any]) -> None:
    """A record that is called complete lost nothing by its own counters, and holds what was delivered."""
    lost = witness["dropped"] + witness["unreadable"]
    whole = all(one["seen"] == one["delivered"] for one in witness["classes"].values())
    if witness["complete"] and (lost or not whole or witness["gaps"] or witness["delivered"] != witness["recorded"]):
        raise BundleDamaged(f"{COVERAGE} calls the record complete, and its own counters say otherwise", COVERAGE)


def _table(bundle: Bundle, name: str) -> dict[str, Any]:
    value = bundle.json(name) if bundle.has(name) else {}
    return value if isinstance(value, dict) else {}
