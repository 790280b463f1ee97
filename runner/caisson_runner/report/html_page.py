"""`caisson-run report`: one HTML file that holds everything it shows and asks nothing of any network.

Its Content-Security-Policy allows its own one script and style sheet, by their digests, and nothing else. Text of a box
reaches the page escaped, events as packed columns; the script makes text nodes of them and never markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Final

from caisson_runner.errors import CaissonError
from caisson_runner.report.html_model import RunPage, read_run
from caisson_runner.report.html_run import banner, facts, incomplete, sections
from caisson_runner.report.html_suite import SuitePage, details, headline, is_suite, overview, read_suite
from caisson_runner.report.html_tags import Html, data_script, joined, packed_script, tag

MARK: Final = "<!doctype html>\n<!-- caisson report -->\n"
"""How a report begins; a file that begins so may be written over."""

KINDS: Final = (
    ("", "all events"),
    ("exec fork exit", "processes"),
    ("write change", "writes and changes"),
    ("open", "opens for reading"),
    ("connect socket", "network"),
    ("look", "looks"),
    ("pass cross", "descriptors passed, borders crossed"),
)


class ReportError(CaissonError):
    """The report cannot be written where it was to go."""

    exit_code: ClassVar[int] = 2


def of_bundle(root: Path) -> str:
    """A report of one run."""
    page = read_run(root)
    name = f"{page.scene.name}: {page.word}"
    head = joined(banner(page), incomplete(page), facts(page))
    return document(name, head, joined(sections(page)), [page])


def of_suite(page: SuitePage) -> str:
    """A report of a suite."""
    body = joined(overview(page), details(page))
    return document(f"Suite {page.name}", headline(page), body, page.runs)


def report(root: Path) -> tuple[str, list[str]]:
    """The page of a bundle or a suite's folder, and what is wrong with bundles of the suite."""
    if is_suite(root):
        page = read_suite(root)
        return of_suite(page), [f"{one.name}: {one.problem}" for one in page.damaged]
    return of_bundle(root), []


def document(title: str, head: Html, body: Html, runs: Sequence[RunPage]) -> str:
    """The whole file."""
    style, script = asset("report.css"), asset("report.js")
    policy = (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    meta = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{title} – Caisson"),
        Html(f"<style>{style}</style>"),
    ]
    index = [{"name": one.root.name, "kept": one.told.kept, "total": one.told.total} for one in runs]
    page = [
        tag("a", "Skip to the events", href="#events", class_="skip"),
        tag("header", tag("p", "Caisson · evidence report", class_="brand"), head),
        _contents(runs),
        tag("main", body, _explorer(runs)),
        tag("footer", tag("p", "Made by caisson-run report. This file loads nothing and sends nothing.")),
        data_script("runs-data", index),
        [packed_script(f"events-{one.number}", one.told.packed) for one in runs],
        Html(f"<script>{script}</script>"),
    ]  # fmt: skip
    whole = tag("html", tag("head", meta), tag("body", page), lang="en")
    return MARK + whole + "\n"


def _contents(runs: Sequence[RunPage]) -> Html:
    if len(runs) == 1 and not runs[0].number:
        names = [
            (f"{name}-0", title)
            for name, title in (
                ("findings", "Findings"), ("did", "Processes"), ("files", "Files"), ("network", "Network"),
                ("diff", "State diff"), ("evidence", "Trust"),
            )
        ]  # fmt: skip
    else:
        names = [("rates", "Lie rate"), ("runs", "All runs"), ("each", "Each run")]
    links = [tag("li", tag("a", title, href=f"#{name}")) for name, title in [*names, ("events", "Events")]]
    return tag("nav", tag("ul", links, role="list"), aria_label="Sections")


def _explorer(runs: Sequence[RunPage]) -> Html:
    """The list of events, which the script fills."""
    choose = None
    if len(runs) > 1:
        options = [tag("option", one.root.name, value=one.number) for one in runs]
        choose = tag("label", "Run ", tag("select", options, id="run"))
    kinds = [tag("option", title, value=value) for value, title in KINDS]
    return tag(
        "section",
        tag("h2", "Every event", id="events-title"),
        tag(
            "div",
            choose,
            tag("label", "Search ", tag("input", type="search", id="search", autocomplete="off", spellcheck="false",
                                       placeholder="path, command, pid, ENOENT …", aria_controls="list")),
            tag("label", "Show ", tag("select", kinds, id="kind")),
            tag("label", tag("input", type="checkbox", id="failed"), " only what failed"),
            class_="tools", role="search",
        ),
        tag("p", "…", id="count", role="status", class_="quiet"),
        tag("div", tag("span", "event"), tag("span", "time"), tag("span", "pid"), tag("span", "kind"),
            tag("span", "result"), tag("span", "what"), class_="heads", aria_hidden="true"),
        tag("div", tag("div", id="rows", role="presentation"), id="list", role="listbox", tabindex="0",
            aria_label="Events: arrow keys move, the chosen one is told below"),
        tag("div", id="detail", role="region", aria_live="polite", aria_label="The chosen event"),
        tag("noscript", tag("p", "This list needs the script in this file. Everything above is plain HTML; ",
                            tag("code", "caisson-run bundle export -f jsonl"), " has every event.")),
        id="events", aria_labelledby="events-title", class_="part",
    )  # fmt: skip


@cache
def asset(name: str) -> str:
    """A file of ours that goes into the page as it is."""
    text = (files("caisson_runner.report") / "assets" / name).read_text("utf-8")
    if "</s" in text.lower():
        raise AssertionError(f"{name} would end its own element")
    return text


def digest(text: str) -> str:
    """As a Content-Security-Policy names what it allows."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def place(root: Path, out: Path | None) -> Path:
    """Where the report goes. Raises `ReportError` rather than spoil a bundle or a file that is no report."""
    name = root.resolve().name
    target = out if out is not None else Path(f"{name}-report.html")
    if target.is_dir():
        target = target / f"{name}-report.html"
    if any((folder / "manifest.json").exists() for folder in target.absolute().parents if folder.name):
        raise ReportError(
            f"{target} is inside a bundle, which would no longer be what was signed: choose another place"
        )
    if target.exists():
        with target.open("rb") as file:
            if file.read(len(MARK)) != MARK.encode():
                raise ReportError(f"{target} exists and is no report of ours: name another file with --output")
    return target


def write(target: Path, text: str) -> None:
    """Whole or not at all."""
    partial = target.with_name(target.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
