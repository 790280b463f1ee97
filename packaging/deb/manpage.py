"""Manual pages from the commands themselves: ``manpage.py FOLDER`` writes tracerd.8 and caisson-run.1."""

from __future__ import annotations

import gzip
import inspect
import sys
from pathlib import Path

import click


def roff(text: str) -> str:
    """One paragraph or line, safe for troff."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in safe.split("\n"))


def prose(text: str) -> list[str]:
    """A docstring as click reads it: paragraphs, and ``\\b`` before what keeps its lines."""
    out: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0] == "\b":
            out += [".PP", ".nf", *(roff(line) for line in lines[1:]), ".fi"]
        else:
            out += [".PP", roff(" ".join(line.strip() for line in lines))]
    return out


def options(command: click.Command, context: click.Context) -> list[str]:
    out: list[str] = []
    for parameter in command.params:
        found = parameter.get_help_record(context)
        if found:
            out += [".TP", f".B {roff(found[0])}", roff(" ".join(found[1].split()))]
    return out


def page(name: str, section: int, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    head = (command.help or "").strip().split("\n", 1)[0].rstrip(".")
    out = [f'.TH {name.upper()} {section} "" Caisson', ".SH NAME", roff(f"{name} - {head}")]
    out += [".SH SYNOPSIS", f".B {roff(name)}", roff(" ".join(command.collect_usage_pieces(context)))]
    out += [".SH DESCRIPTION", *prose(command.help or ""), *options(command, context)]
    if isinstance(command, click.Group):
        out.append(".SH COMMANDS")
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            if found is None or found.hidden:
                continue
            inner = click.Context(found, info_name=sub, parent=context)
            out += [f".SS {roff(name)} {roff(sub)} {roff(' '.join(found.collect_usage_pieces(inner)))}"]
            out += [*prose(found.help or ""), *options(found, inner)]
    if command.epilog:
        out += [".SH NOTES", *prose(command.epilog)]
    return "\n".join(out) + "\n"


def main() -> None:
    from caisson_runner.cli import cli as runner
    from caisson_tracerd.cli import main as tracerd

    folder = Path(sys.argv[1])
    for name, section, command in (("tracerd", 8, tracerd), ("caisson-run", 1, runner)):
        target = folder / f"man{section}" / f"{name}.{section}.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(page(name, section, command).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
