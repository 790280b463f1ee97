"""The programs of the trampoline tier: which function is whose, and attaching them.

Standard library only: the loader uses it on the distribution's Python.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

if __package__:
    from caisson_tracerd import stored, trial
else:  # beside the loader, which runs without the package
    import stored  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore
    import trial  # type: ignore[import-not-found,no-redef,unused-ignore]  # pyright: ignore


def program_name(one: trial.Tried) -> str:
    """A hook's function in the sources. bcc attaches by itself what begins with ``lsm__``, so these do not."""
    return f"{'fexit' if one.how == 'fexit' else 'security'}__{one.hook}"


def attach(loaded: stored.Loaded, hooks: list[trial.Tried]) -> tuple[dict[str, int], dict[str, trial.Tried]]:
    """(links by name, hooks whose program the kernel refuses now). What is refused is left out of the next try."""
    kernel = trial.Kernel()
    links, refused = {}, {}
    for one in hooks:
        name = program_name(one)
        try:
            program = kernel.load(loaded.code(name), one.how, one.number, one.hook)
            links[name] = kernel.attach(program)
            os.close(program)
        except OSError as problem:
            reason = f"the verifier refuses the program: {problem.strerror}"
            try:  # once more, for what it says
                os.close(kernel.load(loaded.code(name), one.how, one.number, one.hook, log=True))
            except OSError as told:
                reason = f"the verifier refuses the program: {told.strerror}"
            refused[one.hook] = replace(one, ok=False, reason=reason)
    if refused:
        for link in links.values():
            os.close(link)
    return links, refused


def again(loaded: stored.Loaded, kept: list[Any]) -> dict[str, int]:
    """Links of the hooks that programs were kept for (`trial.Tried.key`); they were tried on this kernel, booted so."""
    hooks = [trial.Tried(hook, how, function, True, "", "", number) for hook, how, function, number in kept]
    links, refused = attach(loaded, hooks)
    if refused:
        raise stored.Unusable(f"{len(refused)} hooks are refused now")
    return links
