"""Text for terminals: nothing that a box made reaches one unescaped."""

from __future__ import annotations


def printable(raw: bytes | str, limit: int = 400) -> str:
    r"""Show bytes or text from a box: control characters and invalid UTF-8 as \xNN, cut at `limit` characters."""
    text = raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
    out: list[str] = []
    size = 0
    for character in text:
        code = ord(character)
        if 0xDC80 <= code <= 0xDCFF:
            piece = f"\\x{code - 0xDC00:02x}"
        elif character.isprintable():
            piece = character
        else:
            piece = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
        size += len(piece)
        if size > limit:
            out.append("…")
            break
        out.append(piece)
    return "".join(out)


def one_line(text: str) -> str:
    """An error's text as one printable line."""
    return printable(" ".join(text.split()), limit=2000)


def seconds(value: float) -> str:
    """A duration for people: 830 ms, 2.4 s, 3 min 10 s."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 100:
        return f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60)} s"


def size(value: float) -> str:
    """A number of bytes for people, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
