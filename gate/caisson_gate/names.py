"""Canonical host names, addresses and authorities, and the classes of addresses.

A name is normalised once, where it enters the gate, and from then on compared as a tuple of labels: never as a string,
glob or suffix. What is dialled, resolved and sent upstream is rebuilt from the canonical form. Whatever this module
cannot make unambiguous is malformed, before any rule is looked at and before anything is resolved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from encodings import idna
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from unicodedata import ucd_3_2_0

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_RAW = 1024
"""Longer host strings are malformed unread. A name takes at most 253 bytes; Unicode spellings a few times that."""
MAX_NAME = 253
"""Text form of the 255 octets a name may have on the wire."""

_LABEL = re.compile(r"[a-z0-9_-]{1,63}", re.ASCII)
_FORBIDDEN = re.compile(rb"[\x00-\x20\x7f\\%@/?#\[\]]")
_NUMBER = re.compile(r"0x([0-9a-f]+)|(0[0-7]*)|([1-9][0-9]*)", re.ASCII)
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_PORT = re.compile(rb"[0-9]{1,5}")
_DEVIATIONS = frozenset("\u00df\u03c2\u200c\u200d")
"""IDNA 2003 and 2008 disagree about these four, so a name with one of them means two hosts."""

ALWAYS_DENIED = frozenset({"this-host", "loopback", "link-local", "metadata", "multicast", "reserved"})
"""Classes no policy can open."""
OPTIONAL_CLASSES = ("private",)
"""Classes `[addresses] deny` may list."""
DENIED_NAMES = (("metadata", "google", "internal"), ("localhost",))
"""Names, with everything below them, that stand for an always denied address wherever they are resolved."""

_CLASSES: tuple[tuple[str, tuple[Network, ...]], ...] = tuple(
    (name, tuple(ip_network(text) for text in networks.split()))
    for name, networks in (
        ("this-host", "0.0.0.0/8 ::/128"),
        ("loopback", "127.0.0.0/8 ::1/128"),
        ("link-local", "169.254.0.0/16 fe80::/10"),
        ("metadata", "169.254.169.254/32 fd00:ec2::254/128 100.100.100.200/32 168.63.129.16/32"),
        ("multicast", "224.0.0.0/4 ff00::/8"),
        ("reserved", "240.0.0.0/4 ::/96 100::/64"),
        ("private", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 198.18.0.0/15 fc00::/7 fec0::/10"),
    )
)
_SIX_TO_FOUR = IPv6Network("2002::/16")
_MAPPED = IPv6Network("::ffff:0:0/96")
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")
_COMPATIBLE = IPv6Network("::/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_TEREDO = IPv6Network("2001::/32")


class MalformedName(ValueError):
    """This is no host, or not one host only."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host in canonical form: a name, or an address literal.

    ``labels`` are lower-case A-labels, none for an address; ``parents`` are the shorter tuples above it, longest first.
    """

    text: str
    labels: tuple[str, ...]
    parents: tuple[tuple[str, ...], ...]
    address: Address | None = None

    @property
    def authority(self) -> str:
        """As it stands in a URL: an IPv6 address in brackets."""
        return f"[{self.text}]" if isinstance(self.address, IPv6Address) else self.text


def parse_host(raw: bytes) -> Host:
    """A host as somebody wrote it, without a port; an IPv6 address with or without its brackets."""
    if len(raw) > MAX_RAW:
        raise MalformedName("the host is too long")
    if raw.startswith(b"[") and raw.endswith(b"]"):
        return _of_address(_ipv6(raw[1:-1]))
    if b":" in raw:
        return _of_address(_ipv6(raw))
    if _FORBIDDEN.search(raw):
        raise MalformedName("the host holds a byte that no host can hold")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedName("the host is not UTF-8") from None
    text = _to_ascii(text)
    text = text.removesuffix(".")
    labels = tuple(text.split("."))
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        return _of_address(_loose_ipv4(labels))
    return from_labels(labels)


def from_labels(labels: tuple[str, ...]) -> Host:
    """A name from its labels, already in lower case."""
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise MalformedName("a label of the host is empty, too long or holds a character that no name has")
        if label.startswith("xn--"):
            _check_a_label(label)
    text = ".".join(labels)
    if len(text) > MAX_NAME:
        raise MalformedName("the host is longer than a name can be")
    return Host(text, labels, tuple(labels[at:] for at in range(1, len(labels))))


def from_wire(labels: tuple[bytes, ...]) -> Host:
    """A name from the labels of a DNS question: a label that holds a dot is one label, and so no name."""
    try:
        return from_labels(tuple(label.decode("ascii").lower() for label in labels))
    except UnicodeDecodeError:
        raise MalformedName("a label of the name is not ASCII") from None


def parse_authority(raw: bytes, default_port: int | None = None) -> tuple[Host, int]:
    """Host and port of `host[:port]`; without a port the default, or malformed where there is none."""
    if len(raw) > MAX_RAW:
        raise MalformedName("the authority is too long")
    host, port = raw, b""
    if raw.startswith(b"["):
        inside, bracket, rest = raw.partition(b"]")
        if not bracket or (rest and not rest.startswith(b":")):
            raise MalformedName("the brackets of the authority enclose no address")
        host, port = inside + bracket, rest
    elif b":" in raw:
        host, colon, number = raw.partition(b":")
        port = colon + number
    if port:
        if not _PORT.fullmatch(port[1:]) or not 1 <= int(port[1:]) <= 65535:
            raise MalformedName("the port of the authority is no number from 1 to 65535")
        return parse_host(host), int(port[1:])
    if default_port is None:
        raise MalformedName("the authority has no port")
    return parse_host(host), default_port


@lru_cache(maxsize=8192)
def canonical_host(raw: bytes) -> Host | None:
    """`parse_host`, remembered; None when malformed."""
    try:
        return parse_host(raw)
    except MalformedName:
        return None


@lru_cache(maxsize=8192)
def canonical_authority(raw: bytes, default_port: int | None) -> tuple[Host, int] | None:
    """`parse_authority`, remembered; None when malformed."""
    if b":" not in raw:  # the host alone, which may be known
        host = canonical_host(raw)
        return None if host is None or default_port is None else (host, default_port)
    try:
        return parse_authority(raw, default_port)
    except MalformedName:
        return None


@lru_cache(maxsize=8192)
def address_classes(address: Address) -> frozenset[str]:
    """Every class the address is in, also by an IPv4 address inside an IPv6 one. An ordinary address is in none."""
    found = {name for name, networks in _CLASSES for network in networks if _inside(address, network)}
    if isinstance(address, IPv6Address):
        for inner in embedded(address):
            found |= address_classes(inner)
    return frozenset(found)


@lru_cache(maxsize=8192)
def classes_of(text: str) -> frozenset[str] | None:
    """The classes of an address in any spelling; None for what is no address."""
    host = canonical_host(text.encode("utf-8", "replace"))
    return None if host is None or host.address is None else address_classes(host.address)


def readings(text: str) -> tuple[Address, ...]:
    """An address in any spelling, and the IPv4 addresses inside it; nothing for what is no address."""
    host = canonical_host(text.encode("utf-8", "replace"))
    if host is None or host.address is None:
        return ()
    inner = embedded(host.address) if isinstance(host.address, IPv6Address) else ()
    return (host.address, *inner)


def embedded(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that some router or host may read out of this one."""
    low, found = int(address), []
    if any(address in network for network in (_MAPPED, _TRANSLATED, _COMPATIBLE, _NAT64)):
        found.append(low & 0xFFFFFFFF)
    if address in _NAT64_LOCAL:  # the prefix may be 48, 56, 64 or 96 bits long; bits 64 to 71 are skipped
        found += [low & 0xFFFFFFFF, _skipping(low, 48), _skipping(low, 56), _skipping(low, 64)]
    if address in _SIX_TO_FOUR:
        found.append(low >> 80 & 0xFFFFFFFF)
    if address in _TEREDO:
        found += [low >> 64 & 0xFFFFFFFF, ~low & 0xFFFFFFFF]
    if low >> 32 & 0xFCFFFFFF == 0x00005EFE:  # ISATAP
        found.append(low & 0xFFFFFFFF)
    return tuple(IPv4Address(value) for value in dict.fromkeys(found))


def _skipping(value: int, prefix: int) -> int:
    """The 32 bits after the prefix, without the eight bits from 64 on, which translation leaves out."""
    high = value >> 64
    low = value & 0xFFFFFFFFFFFFFF
    return (high << 56 | low) >> (120 - prefix - 32) & 0xFFFFFFFF


def _inside(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _of_address(address: Address) -> Host:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return Host(str(address), (), (), address)


def _ipv6(raw: bytes) -> IPv6Address:
    try:
        text = raw.decode("ascii")
        if "%" in text:  # a zone may look like an allowed name, and means an interface of ours
            raise ValueError
        return IPv6Address(text)
    except ValueError:
        raise MalformedName("this is no IPv6 address") from None


def _loose_ipv4(labels: tuple[str, ...]) -> IPv4Address:
    """The C library's reading: one to four parts, decimal, octal or hexadecimal; the last part fills what is left."""
    parts = []
    for label in labels:
        match = _NUMBER.fullmatch(label)
        if match is None or len(label) > 16:
            raise MalformedName("the host ends like an address and is none")
        hexadecimal, octal, decimal = match.groups()
        parts.append(int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal or "0"))
    if len(parts) > 4 or any(part > 255 for part in parts[:-1]) or parts[-1] >= 256 ** (5 - len(parts)):
        raise MalformedName("the host ends like an address and is none")
    value = parts[-1]
    for at, part in enumerate(parts[:-1]):
        value |= part << 8 * (3 - at)
    return IPv4Address(value)


def _to_ascii(text: str) -> str:
    """Lower-case A-labels. Where the two editions of IDNA read a character differently the name is malformed."""
    if text.isascii():
        return text.lower()
    if any(letter in _DEVIATIONS or ucd_3_2_0.category(letter) == "Cn" for letter in text):
        raise MalformedName("the host holds a character that two readers take for different ones")
    labels = idna.dots.split(text)
    root = [""] if labels[-1] == "" else []
    try:
        mapped = [idna.ToASCII(label).decode("ascii").lower() for label in labels[: len(labels) - len(root)]]
    except UnicodeError:
        raise MalformedName("the host is no internationalised name") from None
    if any("." in label for label in mapped):
        raise MalformedName("a character of the host hides a dot")
    return ".".join(mapped + root)


def _check_a_label(label: str) -> None:
    """What looks encoded must decode to something that encodes to the same, else readers disagree what it names."""
    try:
        decoded = label[4:].encode("ascii").decode("punycode")
        same = not decoded.isascii() and decoded.encode("punycode").decode("ascii") == label[4:]
    except (ValueError, OverflowError):
        same = False
    if not same:
        raise MalformedName("a label of the host is marked as encoded and is not")
