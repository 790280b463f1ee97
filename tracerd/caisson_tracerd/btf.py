"""Offsets of kernel structures and numbers of kernel functions, from the kernel's own type information (BTF).

A module's types build upon the kernel's: their numbers and strings go on where the kernel's end. The format is
``Documentation/bpf/btf.rst`` of the kernel: a header, a section of types that name each other by number, a section of
strings. Standard library only: the loader uses it on the distribution's Python.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_MAGIC = 0xEB9F
_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FUNC, _FUNC_PROTO, _VAR, _DATASEC = 1, 2, 3, 4, 5, 6, 12, 13, 14, 15
_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _DECL_TAG, _TYPE_TAG, _ENUM64 = 8, 9, 10, 11, 17, 18, 19
_TRANSPARENT = (_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG)
_FIXED_EXTRA = {_INT: 4, _ARRAY: 12, _VAR: 4, _DECL_TAG: 4}
_PER_MEMBER = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _ENUM64: 12, _FUNC_PROTO: 8, _DATASEC: 12}


class BtfError(Exception):
    """The kernel's types are not as expected."""


@dataclass(frozen=True)
class Place:
    """Where a member lies in its structure, in bytes."""

    offset: int
    size: int


class Btf:
    """The types of one kernel, or of one of its modules on top of it."""

    def __init__(self, data: bytes, base: Btf | None = None) -> None:
        magic, _version, _flags, header, types, types_size, strings, strings_size = struct.unpack_from(
            "<HBBIIIII", data
        )
        if magic != _MAGIC:
            raise BtfError("this is no BTF of a little-endian machine")
        self._types = memoryview(data)[header + types : header + types + types_size]
        self._strings = data[header + strings : header + strings + strings_size]
        self._at = [0]  # where each type begins; type 0 is void
        self._structs: dict[int, int] = {}  # offset of the name -> type
        self._functions: dict[int, int] = {}
        if base is not None:
            shift = len(base._types)
            self._types = memoryview(bytes(base._types) + bytes(self._types))
            self._strings = base._strings + self._strings
            self._at = list(base._at)
            self._structs, self._functions = dict(base._structs), dict(base._functions)
            self._index(shift)
        else:
            self._index(0)

    @classmethod
    def read(cls, path: Path, base: Btf | None = None) -> Btf:
        return cls(path.read_bytes(), base)

    def function(self, name: str) -> int | None:
        """The number of a function that programs can be attached to, or None."""
        offset = self._name_offset(name)
        return self._functions.get(offset) if offset is not None else None

    def parameters_of(self, name: str) -> int | None:
        """How many parameters a function takes, or None when there is none of the name."""
        number = self.function(name)
        return self._head(self._head(number)[4])[2] if number is not None else None

    def has_struct(self, name: str) -> bool:
        return self._find(name) is not None

    def place(self, struct_name: str, path: list[str]) -> Place:
        """Place of ``struct_name.path[0].path[1]…``; members of nameless parts count as the whole's own."""
        number = self._find(struct_name)
        if number is None:
            raise BtfError(f"this kernel has no struct {struct_name}")
        offset = 0
        for name in path:
            found = self._member(number, name)
            if found is None:
                raise BtfError(f"this kernel has no {struct_name}.{'.'.join(path)}")
            offset, number = offset + found[0], found[1]
        return Place(offset, self._size(number))

    def parameters(self, typedef: str) -> int | None:
        """How many parameters a typedef of a function pointer has, or None when there is none of the name."""
        wanted = self._name_offset(typedef)
        for number in range(1, len(self._at)):
            name, kind, _, _, target = self._head(number)
            if kind == _TYPEDEF and name == wanted:
                _, _, _, _, prototype = self._head(target)
                return self._head(prototype)[2]
        return None

    def _index(self, start: int) -> None:
        position, end, view = start, len(self._types), self._types
        unpack = struct.Struct("<II").unpack_from
        while position < end:
            name, info = unpack(view, position)
            kind, count = info >> 24 & 0x1F, info & 0xFFFF
            if kind == _STRUCT and name:
                self._structs.setdefault(name, len(self._at))
            elif kind == _FUNC:
                self._functions.setdefault(name, len(self._at))
            self._at.append(position)
            position += 12 + _FIXED_EXTRA.get(kind, 0) + _PER_MEMBER.get(kind, 0) * count

    def _head(self, number: int) -> tuple[int, int, int, bool, int]:
        """(name offset, kind, members, bit fields, size or type)."""
        name, info, rest = struct.unpack_from("<III", self._types, self._at[number])
        return name, info >> 24 & 0x1F, info & 0xFFFF, bool(info >> 31), rest

    def _name_offset(self, name: str) -> int | None:
        found = self._strings.find(b"\0" + name.encode() + b"\0")
        return found + 1 if found >= 0 else None

    def _find(self, name: str) -> int | None:
        offset = self._name_offset(name)
        return self._structs.get(offset) if offset is not None else None

    def _resolve(self, number: int) -> int:
        while self._head(number)[1] in _TRANSPARENT:
            number = self._head(number)[4]
        return number

    def _member(self, number: int, name: str) -> tuple[int, int] | None:
        number = self._resolve(number)
        _, kind, count, bits, _ = self._head(number)
        if kind not in (_STRUCT, _UNION):
            return None
        for at in range(count):
            label, target, offset = struct.unpack_from("<III", self._types, self._at[number] + 12 + 12 * at)
            if bits:
                if offset >> 24:
                    continue  # a bit field has no address
                offset &= 0xFFFFFF
            text = self._strings[label : self._strings.index(b"\0", label)].decode()
            if text == name:
                return offset // 8, target
            inner = self._member(target, name) if not text else None
            if inner is not None:
                return offset // 8 + inner[0], inner[1]
        return None

    def _size(self, number: int) -> int:
        number = self._resolve(number)
        _, kind, _, _, size = self._head(number)
        if kind == _PTR:
            return 8
        if kind == _ARRAY:
            target, _, count = struct.unpack_from("<III", self._types, self._at[number] + 12)
            return int(count) * self._size(target)
        return size
