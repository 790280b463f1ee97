"""The key that a store's owner signs bundles with: ed25519, made when it is first needed, readable by its owner alone.

It lies in the store as ``keys/signing.key`` (PKCS#8 in PEM), ``keys/signing.pub`` beside it is to be handed to others.
Public keys of others that are trusted here lie in ``keys/known/*.pub``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caisson_runner.bundle.errors import KeyFault

KEY: Final = "keys/signing.key"
PUBLIC: Final = "keys/signing.pub"
KNOWN: Final = "keys/known"

_PRIVATE_DER: Final = bytes.fromhex("302e020100300506032b657004220420")  # RFC 8410: then the 32 bytes of the seed
_PUBLIC_DER: Final = bytes.fromhex("302a300506032b6570032100")  # then the 32 bytes of the point
_MAX_PEM: Final = 4096


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An ed25519 key's public half, named as in-toto's and TUF's tools name it."""

    raw: bytes

    @property
    def hex(self) -> str:
        return self.raw.hex()

    @property
    def keyid(self) -> str:
        """sha256 of the key in the canonical JSON that securesystemslib gives it."""
        text = f'{{"keytype":"ed25519","keyval":{{"public":"{self.hex}"}},"scheme":"ed25519"}}'
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def pem(self) -> str:
        return _pem("PUBLIC KEY", _PUBLIC_DER + self.raw)

    def to_json(self) -> dict[str, Any]:
        return {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": self.hex}}

    @classmethod
    def parse(cls, value: object) -> PublicKey:
        """Reads what `to_json` gives. Raises ValueError."""
        try:
            raw = bytes.fromhex(value["keyval"]["public"])  # type: ignore[index]
            key = cls(raw)
        except (TypeError, KeyError, ValueError):
            raise ValueError("it is no ed25519 key") from None
        if len(raw) != 32 or value != key.to_json():
            raise ValueError("it is no ed25519 key")
        return key

    @classmethod
    def from_pem(cls, text: bytes, what: str) -> PublicKey:
        """Reads a PEM file's text, ``what`` in errors. Raises `KeyFault`."""
        return cls(_body(text, "PUBLIC KEY", _PUBLIC_DER, what))

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether this key's owner signed ``message``."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key. Its seed is in no ``repr``."""

    seed: Secret

    @classmethod
    def of(cls, seed: bytes) -> Signer:
        """The key with this seed of 32 bytes."""
        return cls(Secret(seed))

    @property
    def public(self) -> PublicKey:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return PublicKey(self._private().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def sign(self, message: bytes) -> bytes:
        signature: bytes = self._private().sign(message)
        return signature

    def _private(self) -> Any:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed.value)


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """32 bytes that are never printed."""

    value: bytes

    def __repr__(self) -> str:
        return "Secret(…)"


def own(home: Path | None = None) -> Signer:
    """The key of this store, made now if there is none. Of several that make one at once, one wins and all use it."""
    place = (home if home is not None else _home()) / KEY
    try:
        return _load(place)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise KeyFault(f"the signing key {place} cannot be read: {error.strerror}") from None
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _place(place, _pem("PRIVATE KEY", _PRIVATE_DER + secrets.token_bytes(32)).encode("ascii"), 0o600)
        signer = _load(place)
    except OSError as error:
        raise KeyFault(
            f"no signing key can be made at {place}: {error.strerror}; set CAISSON_HOME to a folder you may write to"
        ) from None
    return signer


def publish(signer: Signer, home: Path | None = None) -> Path:
    """The public half as a file, to be handed to others."""
    place = (home if home is not None else _home()) / PUBLIC
    text = signer.public.pem.encode("ascii")
    try:
        if not place.exists() or place.read_bytes() != text:
            place.unlink(missing_ok=True)
            _place(place, text, 0o644)
    except OSError as error:
        raise KeyFault(f"{place} cannot be written: {error.strerror}") from None
    return place


def known(home: Path | None = None) -> Iterator[tuple[str, PublicKey]]:
    """The keys trusted here, by where they are from: this store's own (if it has one), then those put in `KNOWN`."""
    root = home if home is not None else _home()
    try:
        yield "this store's own", _load(root / KEY).public
    except (OSError, KeyFault):  # not ours to sign with is not ours to trust
        pass
    folder = root / KNOWN
    for path in sorted(folder.glob("*.pub")) if folder.is_dir() else ():
        yield path.name, read_public(path)


def read_public(path: Path) -> PublicKey:
    """A public key's file. Raises `KeyFault`."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_PEM)
    except OSError as error:
        raise KeyFault(f"the key {path} cannot be read: {error.strerror}") from None
    return PublicKey.from_pem(text, str(path))


def _load(place: Path) -> Signer:
    with place.open("rb") as file:
        held = os.fstat(file.fileno())
        text = file.read(_MAX_PEM)
    if stat.S_IMODE(held.st_mode) & 0o077:
        raise KeyFault(f"others can read the signing key {place}: chmod 600 it, or remove it to have a new one made")
    return Signer.of(_body(text, "PRIVATE KEY", _PRIVATE_DER, str(place)))


def _place(path: Path, data: bytes, mode: int) -> None:
    """Puts a file there whole or not at all; one that is there already stays."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
    finally:
        draft.unlink(missing_ok=True)


def _pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.b64encode(der).decode('ascii')}\n-----END {label}-----\n"


def _body(text: bytes, label: str, prefix: bytes, what: str) -> bytes:
    lines = text.decode("ascii", "replace").split()
    begin, end = f"-----BEGIN {label}-----".split(), f"-----END {label}-----".split()
    try:
        if lines[: len(begin)] != begin or lines[-len(end) :] != end:
            raise ValueError
        der = base64.b64decode("".join(lines[len(begin) : -len(end)]), validate=True)
        if len(der) != len(prefix) + 32 or not der.startswith(prefix):
            raise ValueError
    except (ValueError, binascii.Error):
        raise KeyFault(f"{what} is no ed25519 {label.lower()} in PEM") from None
    return der[len(prefix) :]


def _home() -> Path:
    from caisson_runner.boxes.store import home

    return home()
