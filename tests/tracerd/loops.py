"""Prints the loops of the witness programs that no jump closes: ``loops.py FOLDER-OF-BPF FOLDER-AROUND-THE-PACKAGE``.

Runs on the distribution's Python, because bcc does. It compiles and does not load. The search is the kernel's own,
``check_cfg``, before 6.3: depth first, and an edge back to an instruction that is still open must be a jump's.
"""

import os
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, sys.argv[2])
from caisson_tracerd import loader, trial


def edges(code: bytes, at: int) -> list[tuple[int, bool]]:
    """(next instruction, whether a jump leads there)."""
    operation, _, offset, _ = struct.unpack_from("<BBhi", code, at * 8)
    kind, what = operation & 7, operation & 0xF0
    if kind == 5 and what == 0x90:  # exit
        return []
    if kind == 5 and what == 0:  # goto
        return [(at + offset + 1, True)]
    if kind in (5, 6) and not (kind == 5 and what == 0x80):  # a condition; not a call
        return [(at + 1, True), (at + offset + 1, True)]
    return [(at + 1, False)]


def open_loops(code: bytes) -> list[tuple[int, int]]:
    """Edges that the kernel would call back-edges."""
    found, state, stack, todo = [], {0: 1}, [0], {}
    while stack:
        at = stack[-1]
        for target, jump in todo.setdefault(at, iter(edges(code, at))):
            if target not in state:
                state[target] = 1
                stack.append(target)
                break
            if state[target] == 1 and not jump:
                found.append((at, target))
        else:
            state[at] = 2
            stack.pop()
    return found


def main() -> None:
    types = loader.kernel_types()
    text = loader.flatten(Path(sys.argv[1]) / "witness.c", set())
    hooks = [trial.Tried(hook.name, hook.how, "", True, "", "") for hook in trial.HOOKS]
    with tempfile.TemporaryDirectory(prefix="caisson-types-") as root:
        os.environ["BCC_KERNEL_SOURCE"] = root
        from bcc import BPF

        BPF._trace_autoload = lambda self: None
        loader.write_source_tree(Path(root), types + loader.helpers_missing(types))
        for fetch in ({"CAISSON_FETCH": 1, "CAISSON_ANCESTOR": 1}, {"CAISSON_ANCESTOR": 1}):
            defines = {**loader.definitions(text, loader.all_types(), 3), **fetch}
            programs = loader.compiled(BPF, text, defines, hooks)
            for number in range(loader_functions(programs)):
                name = function_name(programs, number)
                loops = open_loops(programs.dump_func(name))
                print(f"{name.decode()}{'' if 'CAISSON_FETCH' in fetch else ' without fetch'}: {loops}")


def loader_functions(programs: object) -> int:
    from bcc.libbcc import lib

    return int(lib.bpf_num_functions(programs.module))


def function_name(programs: object, number: int) -> bytes:
    from bcc.libbcc import lib

    return bytes(lib.bpf_function_name(programs.module, number))


main()
