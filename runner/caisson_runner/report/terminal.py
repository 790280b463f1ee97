"""Prints tables and sentences to a terminal: plain when piped, never with markup from outside."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from caisson_runner.report.tables import Table
from caisson_runner.report.text import printable

GOOD, BAD = "green", "red"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads any more: for the caller to say so, where rich would exit with 1, a verdict's code."""
        raise BrokenPipeError


def console(stderr: bool = False) -> Console:
    """A console that keeps tables whole when output goes to a file or a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 140
    return _Console(file=stream, width=width, highlight=False, emoji=False, markup=False)


def _cell(text: str) -> Text:
    shown = printable(text)
    style = ""
    if shown.startswith(("PASS", "pass", "ok")):
        style = GOOD
    elif shown.startswith(("fail", "void", "infra", "missing")):
        style = BAD
    cell = Text(shown, style=style)
    for mark in ("(FALSE PASS)", "(FALSE PASS on visible-only)", "← lie"):
        cell.highlight_words([mark], style="bold red")
    return cell


def grid(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], notes: Iterable[str] = ()) -> None:
    """Print one table with its notes."""
    out = console()
    table = RichTable(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(cell) for cell in row))
    out.print(table)
    for note in notes:
        out.print(Text("  " + printable(note, 1000)))
    out.print()


def print_table(table: Table) -> None:
    """Print an experiment's table."""
    grid(f"{table.id}  {table.title}", table.columns, table.rows, table.notes)
