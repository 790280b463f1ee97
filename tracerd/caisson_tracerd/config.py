"""``/etc/caisson/tracerd.toml``: who may ask, how large rings are, where metrics are served. Strict."""

from __future__ import annotations

import ipaddress
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from caisson_tracerd.errors import UsageError

CONFIG: Final = Path("/etc/caisson/tracerd.toml")
DEFAULT_RING_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where metrics are served: a socket file, or a loopback address."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TcpWanted:
    """The table ``[tcp]``: address, files, and whose certificate is which user's (name in it -> user name or uid)."""

    listen: str = ""
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    users: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """The file's content. ``allow`` are user names or uids as written; ``metrics`` None means: not served."""

    allow: tuple[str, ...] = ()
    ring_size: int = DEFAULT_RING_BYTES
    metrics: Endpoint | None = None
    tcp: TcpWanted = TcpWanted()


def read(path: Path) -> Config:
    """UsageError names the file and the first thing wrong with it; unknown keys are wrong."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"configuration {path} does not exist; make it, or run: tracerd install") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UsageError(f"configuration {path} cannot be read: {problem}") from None
    try:
        return parse(found)
    except UsageError as problem:
        raise UsageError(f"configuration {path}: {problem}") from None


def parse(found: dict[str, Any]) -> Config:
    """A Config from parsed TOML; UsageError without the file's name."""
    unknown = sorted(set(found) - {"allow", "ring_size", "metrics", "tcp"})
    if unknown:
        raise UsageError(f"unknown key {unknown[0]!r}; known are allow, ring_size, metrics and tcp")
    allow = found.get("allow", [])
    if not isinstance(allow, list) or not all(isinstance(name, str) and name for name in allow):
        raise UsageError('allow must be a list of user names, as in allow = ["alice"]')
    ring_size = found.get("ring_size", DEFAULT_RING_BYTES)
    if not isinstance(ring_size, int) or isinstance(ring_size, bool):
        raise UsageError("ring_size must be a number of bytes, as in ring_size = 4194304")
    metrics = found.get("metrics", "")
    if not isinstance(metrics, str):
        raise UsageError('metrics must be an address, as in metrics = "127.0.0.1:9477"')
    return Config(tuple(allow), ring_size, endpoint(metrics) if metrics else None, _tcp(found.get("tcp", {})))


def _tcp(found: object) -> TcpWanted:
    if not isinstance(found, dict):
        raise UsageError("tcp must be a table, as in [tcp]")
    table: dict[str, object] = found
    unknown = sorted(set(table) - {"listen", "cert", "key", "ca", "users"})
    if unknown:
        raise UsageError(f"unknown key 'tcp.{unknown[0]}'; known are listen, cert, key, ca and users")
    words = {name: table.get(name, "") for name in ("listen", "cert", "key", "ca")}
    users = table.get("users", {})
    if not all(isinstance(word, str) for word in words.values()):
        raise UsageError("tcp.listen, tcp.cert, tcp.key and tcp.ca must be texts")
    if not isinstance(users, dict) or not all(isinstance(user, str) and user for user in users.values()):
        raise UsageError('tcp.users must be a table of names in certificates, as in "runner.test" = "alice"')
    cert, key, ca = (Path(str(words[name])) if words[name] else None for name in ("cert", "key", "ca"))
    return TcpWanted(str(words["listen"]), cert, key, ca, tuple(sorted(users.items())))


def endpoint(text: str) -> Endpoint:
    """``127.0.0.1:9477``, ``[::1]:9477`` or ``unix:/run/caisson/metrics.sock``; nothing that leaves the machine."""
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute() or len(bytes(path)) > 107:
            raise UsageError(f"metrics socket {text!r} is not an absolute path of at most 107 bytes")
        return Endpoint(path)
    host, colon, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port) if colon and port.isascii() and port.isdigit() else -1
    except ValueError:
        raise UsageError(f"metrics address {text!r} is not HOST:PORT with a numeric host, nor unix:PATH") from None
    if not 0 <= number <= 65535:
        raise UsageError(f"metrics address {text!r} has no port from 0 to 65535")
    if not address.is_loopback:
        raise UsageError(f"metrics address {text!r} is not a loopback address; let a proxy carry it further")
    return Endpoint(None, str(address), number)
