"""Rates with their intervals, drawn: a dot for the share, a line for Wilson's 95 % interval. SVG, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from caisson_runner.report.html_tags import Html, tag
from caisson_runner.verify.intervals import wilson

_WIDTH: Final = 400
_HEIGHT: Final = 18


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` of ``total``; ``tone`` is a class of the style sheet: good, bad or plain."""

    name: str
    count: int
    total: int
    tone: str = "plain"

    @property
    def words(self) -> str:
        """``8 of 15 = 53 % (30–75 %)``."""
        if not self.total:
            return "no runs"
        low, high = wilson(self.count, self.total)
        return (
            f"{self.count} of {self.total} = {_percent(self.count / self.total)} % ({_percent(low)}–{_percent(high)} %)"
        )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def plot(rates: Sequence[Rate], caption: str) -> Html:
    """One line a rate, all on the scale from 0 to 100 %."""
    rows = [
        tag("div", tag("dt", rate.name), tag("dd", _drawn(rate), tag("span", rate.words, class_="num")), class_="rate")
        for rate in rates
    ]
    scale = tag("div", [tag("span", f"{at} %") for at in (0, 25, 50, 75, 100)], class_="scale", aria_hidden="true")
    return tag("figure", tag("figcaption", caption), tag("dl", rows, class_="rates"), scale, class_="plot")


def _drawn(rate: Rate) -> Html:
    grid = [
        tag("line", x1=_x(at / 4), x2=_x(at / 4), y1="0", y2=str(_HEIGHT), class_="grid") for at in range(5)
    ]  # fmt: skip
    marks: list[Html] = []
    if rate.total:
        low, high = wilson(rate.count, rate.total)
        middle = str(_HEIGHT / 2)
        marks = [
            tag("line", x1=_x(low), x2=_x(high), y1=middle, y2=middle, class_="range"),
            tag("line", x1=_x(low), x2=_x(low), y1="5", y2=str(_HEIGHT - 5), class_="range"),
            tag("line", x1=_x(high), x2=_x(high), y1="5", y2=str(_HEIGHT - 5), class_="range"),
            tag("line", x1=_x(rate.count / rate.total), x2=_x(rate.count / rate.total), y1="1", y2=str(_HEIGHT - 1),
                class_="dot"),
        ]  # fmt: skip
    return tag(
        "svg", grid, marks, viewBox=f"-4 0 {_WIDTH + 8} {_HEIGHT}", preserveAspectRatio="none",
        role="img", aria_label=f"{rate.name}: {rate.words}", class_=f"whisker {rate.tone}",
    )  # fmt: skip


def _x(share: float) -> str:
    return f"{_WIDTH * share:.1f}"
