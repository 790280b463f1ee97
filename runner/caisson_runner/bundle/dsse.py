"""The signed envelope of a statement (DSSE v1), in one canonical text.

Reading is stricter than DSSE asks for: an envelope of ours has exactly one text, so that a changed byte anywhere in it,
white space and the spare bits of base64 included, is a change.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final

from caisson_runner.bundle.canonical import dumps, loads
from caisson_runner.bundle.errors import BundleError
from caisson_runner.bundle.keys import PublicKey, Signer

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload and the one signature over it."""

    payload: bytes
    keyid: str
    signature: bytes

    def dumps(self) -> bytes:
        return dumps(
            {
                "payload": base64.b64encode(self.payload).decode("ascii"),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"keyid": self.keyid, "sig": base64.b64encode(self.signature).decode("ascii")}],
            }
        )

    def signed_by(self, key: PublicKey) -> bool:
        return key.keyid == self.keyid and key.verifies(self.signature, pre_auth(self.payload))

    @classmethod
    def parse(cls, text: bytes, what: str) -> Envelope:
        """Raises `BundleError` for anything but the text that `dumps` gives."""
        value: Any = loads(text, what)
        try:
            (one,) = value["signatures"]
            payload, signature = (base64.b64decode(part, validate=True) for part in (value["payload"], one["sig"]))
            envelope = cls(payload, str(one["keyid"]), signature)
        except (TypeError, KeyError, ValueError, binascii.Error):
            raise BundleError(f"{what} is no signed statement") from None
        if envelope.dumps() != text:
            raise BundleError(f"{what} is not in its canonical form")
        return envelope


def pre_auth(payload: bytes) -> bytes:
    """What is signed: type and payload with their lengths, so that neither can pass for the other."""
    kind = PAYLOAD_TYPE.encode("ascii")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, signer: Signer) -> Envelope:
    """The payload in an envelope of its own."""
    return Envelope(payload, signer.public.keyid, signer.sign(pre_auth(payload)))
