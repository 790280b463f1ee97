"""What the compiler is given: of the kernel's types those that a text needs, and of the programs those of one part."""

from __future__ import annotations

from caisson_tracerd import parts, pruned, rules
from caisson_tracerd.layout import sources
from caisson_tracerd.loader import flatten

TYPES = """#ifndef __VMLINUX_H__
typedef unsigned int u32;

typedef u32 (*asked_t)(struct far *, enum colour);

typedef int filler_t(struct far *);

enum colour {
	RED = 1,
	GREEN = 2,
};

enum {
	LOOSE = 7,
};

struct inner {
	u32 value;
};

struct far {
	struct inner big[100];
};

struct outer {
	struct inner inside;
	struct far *elsewhere;
	union {
		asked_t ask;
	};
};

struct alone {
	u32 value;
};

struct far;
#endif
"""


def test_what_is_inside_comes_along_and_what_is_pointed_to_stays_open() -> None:
    found = pruned.needed(TYPES, "struct outer one;")
    assert all(words in found for words in ("struct inner {", "struct outer {", "typedef u32 (*asked_t)", "RED = 1"))
    assert "struct far;" in found
    assert all(words not in found for words in ("struct far {", "struct alone {", "LOOSE", "filler_t", "#ifndef"))
    assert found.index("typedef unsigned int u32;") < found.index("struct inner {")


def test_a_constant_brings_its_enum_and_a_typedef_its_types() -> None:
    assert "LOOSE = 7" in pruned.needed(TYPES, "int one = LOOSE;")
    assert "typedef int filler_t" in pruned.needed(TYPES, "filler_t *one;")
    assert "struct alone {" in pruned.needed(TYPES, "", "int f(struct alone one);")


def test_every_program_is_in_one_part_and_static_in_the_others() -> None:
    text = flatten(sources() / "witness.c", set())
    assert text.count("\nint stage_") == len(rules.PROGRAMS)
    own = {"stage_open", "raw_tracepoint__sys_exit", "security__unlink"}
    mine = parts.part(text, own)
    assert len(mine.splitlines()) == len(text.splitlines())
    for kept in ("\nint stage_open(", "\nRAW_TRACEPOINT_PROBE(sys_exit)", "\nCHANGE_BELOW(unlink,"):
        assert kept in mine
    for hidden in ("int stage_exec(", "RAW_TRACEPOINT_PROBE(sys_enter)", "CHANGE_BELOW(rmdir,", "int fexit__open("):
        assert f"\nstatic {hidden}" in mine
        assert f"\n{hidden}" not in mine
