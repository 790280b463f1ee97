"""Credentials that stay outside the box.

The box holds a placeholder, which clients want to see set; in requests that a rule with ``inject = "env:NAME"`` allows,
the gate sets the real header on the way out. What is recorded is the request as the box sent it. Where an upstream
repeats the value it is masked in the answer, and everything that is stored passes the same mask, so neither the box nor
a bundle ever holds it. Masked are the value itself and what it becomes in a URL, in JSON, in hexadecimal and in base64
at any offset; a value that an upstream transforms in another way is beyond this.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final
from urllib.parse import quote

from caisson_gate.errors import GateError
from caisson_gate.policy import Policy
from caisson_gate.rules import Inject

MIN_LENGTH: Final = 8
"""A shorter value is in other text by chance."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


class CredentialUnusable(GateError):
    """A credential that is missing, or that could not be kept out of the record."""

    exit_code: ClassVar[int] = 2


class Redactor:
    """Replaces secrets by masks of the same length, in whole values and in streams."""

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        self._masks: dict[bytes, bytes] = {}
        for name, value in secrets.items():
            for form in _forms(value):
                self._masks.setdefault(form, _mask(name, len(form)))
        longest_first = sorted(self._masks, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None
        self._prefixes = frozenset(form[:size] for form in longest_first for size in range(1, len(form)))
        self._reach = max((len(form) for form in longest_first), default=1) - 1

    def __bool__(self) -> bool:
        return self._pattern is not None

    def whole(self, data: bytes) -> bytes:
        """The value with every secret in it masked."""
        if self._pattern is None or not any(form in data for form in self._masks):  # the search alone is far cheaper
            return data
        return self._pattern.sub(self._masked, data)

    def pairs(self, pairs: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Headers with every secret masked."""
        return [(self.whole(name), self.whole(value)) for name, value in pairs]

    def stream(self) -> RedactingStream:
        """For one body."""
        return RedactingStream(self)

    def _masked(self, found: re.Match[bytes]) -> bytes:
        return self._masks[found[0]]

    def open_end(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a secret."""
        for size in range(min(self._reach, len(data)), 0, -1):
            if data[-size:] in self._prefixes:
                return size
        return 0


class RedactingStream:
    """One body in chunks: a secret that lies across chunks is found too; only a possible beginning is held back."""

    __slots__ = ("_held", "_redactor", "changed")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""
        self.changed = False

    def feed(self, chunk: bytes) -> bytes:
        """What may go on now."""
        if not self._redactor:
            return chunk
        data = self._held + chunk
        masked = self._redactor.whole(data)
        self.changed |= masked != data
        keep = self._redactor.open_end(masked)
        self._held = masked[len(masked) - keep :]
        return masked[: len(masked) - keep]

    def finish(self) -> bytes:
        """What was held back, at the body's end."""
        rest, self._held = self._held, b""
        return rest


class Credentials:
    """Names, values and their placeholders."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """CredentialUnusable when a value cannot be kept out of the record."""
        for name, value in values.items():
            if not _NAME.fullmatch(name):
                raise CredentialUnusable(f"credential {name!r} has no usable name; use letters, digits and underscores")
            if len(value.encode()) < MIN_LENGTH:
                raise CredentialUnusable(
                    f"credential {name} has fewer than {MIN_LENGTH} bytes and could not be told from other text;"
                    " use a longer one"
                )
            if any(character in value for character in "\r\n\0"):
                raise CredentialUnusable(f"credential {name} holds a line end; a header cannot carry it")
        self._values = {name: value.encode() for name, value in values.items()}
        self.redactor = Redactor(self._values)

    @classmethod
    def named(cls, names: Iterable[str], environ: Mapping[str, str]) -> Credentials:
        """Those names from an environment. CredentialUnusable when one is not set."""
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            if not environ.get(name):
                raise CredentialUnusable(f"the policy injects env:{name}, which is not set; set it and run again")
        return cls({name: environ[name] for name in wanted})

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def header(self, inject: Inject) -> tuple[bytes, bytes]:
        """The header that carries the credential. KeyError when it is not among these."""
        return inject.header.encode(), inject.prefix.encode() + self._values[inject.env]


def credential_names(policy: Policy) -> list[str]:
    """The credentials a policy injects, each once."""
    return sorted({rule.inject.env for rule in policy.allow if rule.inject is not None})


def placeholder(name: str) -> str:
    """What stands for the credential in the box: says itself what it is, and is worth nothing elsewhere."""
    return f"caisson-placeholder-{name}"


def _mask(name: str, size: int) -> bytes:
    return f"[masked {name}]".encode().ljust(size, b"*")[:size]


def _forms(value: bytes) -> set[bytes]:
    text = value.decode("utf-8", "surrogateescape")
    escaped = quote(value, safe="")
    forms = {
        value,
        escaped.encode(),
        re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), escaped).encode(),
        json.dumps(text)[1:-1].encode(),
        json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape"),
        value.hex().encode(),
        value.hex().upper().encode(),
    }
    for plain in (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]):
        slashed = plain.replace("/", "\\/")  # as PHP writes JSON
        marked = plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")  # as Go does
        forms |= {made.encode("utf-8", "surrogateescape") for made in (slashed, marked)}
    page = html.escape(text)
    for written in (page, html.escape(text, quote=False), page.replace("&#x27;", "&#39;").replace("&quot;", "&#34;")):
        forms.add(written.encode("utf-8", "surrogateescape"))
    for offset in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            whole = encode(bytes(offset) + value)
            forms.add(whole[(offset * 8 + 5) // 6 : (offset + len(value)) * 8 // 6])
    return {form for form in forms if len(form) >= MIN_LENGTH}
