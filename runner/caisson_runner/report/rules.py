"""The tables of docs/findings.md, made from the rules: `python -m caisson_runner.report.rules`. Pure."""

from __future__ import annotations

from caisson_runner.verify.findings.rules import STREAMS, VARIABLES, Rule, shipped

BEGIN, END = "<!-- made by make cheats-page -->", "<!-- end -->"


def _row(rule: Rule) -> str:
    severity = rule.severity + (f" ({rule.in_a_lie} in a lie)" if rule.in_a_lie else "")
    return f"| `{rule.id}` | {severity} | {rule.over} | {rule.means.replace('|', chr(92) + '|')} |"


def tables() -> str:
    """What the page holds between its two marks."""
    rules = ["| rule | severity | over | what it means |", "|---|---|---|---|", *map(_row, shipped().rules)]
    streams = ["| stream | fields |", "|---|---|"]
    for name, fields in STREAMS.items():
        shown = ", ".join(f"`{field}` {kind}" for field, kind in fields.items())
        streams.append(f"| `{name}` | {shown or 'one subject; only the variables below'} |")
    variables = ", ".join(f"`{name}` {kind}" for name, kind in VARIABLES.items())
    return "\n".join([*rules, "", "Streams:", "", *streams, "", f"Everywhere: {variables}."])


def page(text: str) -> str:
    """The page with its tables made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{tables()}\n{END}{tail}"


if __name__ == "__main__":
    import sys
    from pathlib import Path

    file = Path(sys.argv[1])
    file.write_text(page(file.read_text()))
