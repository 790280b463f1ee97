"""Reports in a real browser: nothing is loaded, nothing runs that is not ours, and people can use them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from report_browser import Browser

pytestmark = pytest.mark.browser

CONTRAST = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => { const f = [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * f[0] + .7152 * f[1] + .0722 * f[2]; };
  const behind = (one) => { for (; one; one = one.parentElement) { const c = parse(getComputedStyle(one).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const poor = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((n) => n.nodeType === 3 && n.nodeValue.trim());
    if (!own || !one.checkVisibility() || ["SCRIPT", "STYLE", "OPTION", "NOSCRIPT"].includes(one.tagName)) continue;
    const a = light(parse(getComputedStyle(one).color)), b = light(behind(one));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.push(one.tagName + "." + one.className + " " + ratio.toFixed(2));
  }
  return poor; })()"""  # noqa: E501


@pytest.mark.parametrize("name", ["story", "hostile", "suite"])
def test_page_loads_nothing_but_itself_and_complains_of_nothing(
    window: Browser, name: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(name)
    window.size(1280, 900)
    window.open(path)
    assert window.problems == []
    assert window.asked == [path.as_uri()]


def test_policy_holds_also_for_a_script_that_got_in(window: Browser, story: Path) -> None:
    window.open(story)
    window.js("document.body.insertAdjacentHTML('beforeend', '<img src=http://192.0.2.1/ onerror=window.pwned=1>')")
    window.js("fetch('http://192.0.2.1/').catch(() => { document.body.dataset.refused = 1 })")
    window.until("document.body.dataset.refused")
    assert window.js("window.pwned === undefined")
    assert "Content Security Policy" in " ".join(window.problems)


def test_hostile_strings_stay_text(window: Browser, hostile: Path) -> None:
    window.open(hostile)
    window.js("for (const one of document.querySelectorAll('details')) one.open = true")
    window.js("document.getElementById('list').focus()")
    for at in range(int(window.js("document.getElementById('list').dataset.found"))):
        window.key("ArrowDown", 40)
        assert window.js("document.querySelector('[aria-selected=true]').getAttribute('aria-posinset')") == str(at + 1)
        assert window.js("document.querySelectorAll('#detail script, #detail img, #detail b').length") == 0
    assert window.js("window.pwned") is None
    assert window.js("document.querySelectorAll('img, b, iframe, body style').length") == 0
    assert window.js("document.querySelectorAll('script').length") == 3
    assert window.js("document.title").startswith("</script><script>window.pwned=1</script>")
    assert window.js("[...document.querySelectorAll('code')].some((one) => one.textContent.includes('<img src=http'))")
    assert window.problems == []


def test_search_finds_an_event_and_says_how_many(window: Browser, story: Path) -> None:
    window.open(story)
    window.js("const s = document.getElementById('search'); s.value = 'Conftest'; s.dispatchEvent(new Event('input'))")
    window.until("document.getElementById('list').dataset.found === '1'")
    assert "conftest.py" in window.js("document.querySelector('#rows .event').textContent")
    assert "1 found in 17 events" in window.js("document.getElementById('count').textContent")


def test_filters_narrow_the_list(window: Browser, story: Path) -> None:
    window.open(story)
    window.js(
        "const k = document.getElementById('kind'); k.value = 'connect socket'; k.dispatchEvent(new Event('change'))"
    )
    assert window.js("document.getElementById('list').dataset.found") == "4"
    window.js("document.getElementById('failed').click()")
    assert window.js("document.getElementById('list').dataset.found") == "2"


def test_finding_leads_to_its_event_also_when_a_filter_hides_it(window: Browser, story: Path) -> None:
    window.open(story)
    window.js("const s = document.getElementById('search'); s.value = 'nothing'; s.dispatchEvent(new Event('input'))")
    window.until("document.getElementById('list').dataset.found === '0'")
    window.js("document.querySelector('.finding a.ev').click()")
    window.until("document.documentElement.dataset.followed === '6'")
    assert window.js("document.querySelector('.event.chosen').dataset.seq") == "6"
    assert window.js("document.activeElement.id") == "list"
    assert "create, truncate" in window.js("document.getElementById('detail').textContent")


@pytest.mark.parametrize("name", ["story", "hostile", "suite"])
def test_phone_scrolls_in_one_direction_only(window: Browser, name: str, request: pytest.FixtureRequest) -> None:
    window.size(360, 740, mobile=True)
    window.open(request.getfixturevalue(name))
    window.js("for (const one of document.querySelectorAll('details')) one.open = true")
    assert window.js("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    window.size(1280, 900)


def test_list_is_used_with_the_keyboard_alone(window: Browser, story: Path) -> None:
    window.open(story)
    window.js("document.getElementById('failed').focus()")
    window.key("Tab", 9)
    assert window.js("document.activeElement.id") == "list"
    for name, code, seq in (("ArrowDown", 40, "1"), ("ArrowDown", 40, "2"), ("End", 35, "17"), ("ArrowUp", 38, "16")):
        window.key(name, code)
        assert window.js("document.querySelector('[aria-selected=true]').dataset.seq") == seq
    active = window.js("document.getElementById(document.getElementById('list').getAttribute('aria-activedescendant'))")
    assert active is not None
    assert window.js("document.querySelector('[aria-selected=true]').getAttribute('aria-posinset')") == "16"


def test_screen_reader_is_told_what_everything_is(window: Browser, story: Path) -> None:
    window.open(story)
    nodes = window.call("Accessibility.getFullAXTree")["nodes"]
    named = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]]
    roles = {role for role, _name in named}
    assert {"banner", "main", "navigation", "search", "listbox", "contentinfo", "status", "heading"} <= roles
    controls = ("listbox", "searchbox", "combobox", "checkbox", "link", "region", "button")
    assert [pair for pair in named if pair[0] in controls and not pair[1].strip()] == []
    levels = window.js("[...document.querySelectorAll('h1,h2,h3,h4')].map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["story", "suite"])
def test_text_has_enough_contrast_in_both_colour_schemes(
    window: Browser, name: str, dark: bool, request: pytest.FixtureRequest
) -> None:
    window.size(1280, 900, dark=dark)
    window.open(request.getfixturevalue(name))
    assert window.js(CONTRAST) == []
    window.size(1280, 900)


def test_hundred_thousand_events_are_searched_and_scrolled_with_few_elements(window: Browser, large: Path) -> None:
    window.open(large)
    assert window.js("document.getElementById('count').textContent") == "100,000 events"
    window.js("document.getElementById('list').focus()")
    window.key("End", 35)
    assert window.js("document.querySelector('.event.chosen').dataset.seq") == "100000"
    assert window.js("document.querySelectorAll('.event').length") < 100
    window.js("document.getElementById('list').scrollTop = 1400000")
    window.until("[...document.querySelectorAll('.event')].some((one) => one.dataset.seq === '50001')")
    window.js("const s = document.getElementById('search'); s.value = 'needle'; s.dispatchEvent(new Event('input'))")
    window.until("document.getElementById('list').dataset.found === '1'")
    assert window.js("document.querySelector('.event').dataset.seq") == "100000"
    assert window.problems == []
    assert large.stat().st_size < 4 << 20


def test_suite_leads_to_a_run_and_to_an_event_of_it(window: Browser, suite: Path) -> None:
    window.open(suite)
    window.js("[...document.querySelectorAll('table.runs a')].find((one) => one.textContent === 'E1-cheat-3').click()")
    window.until("document.getElementById('run-3').open")
    window.js("document.querySelector('#run-3 .finding a.ev').click()")
    window.until("document.documentElement.dataset.followed === '6'")
    assert window.js("document.getElementById('run').value") == "3"
    assert window.js("document.getElementById('count').textContent") == "17 events of E1-cheat-3"


def test_plot_shows_each_rate_between_the_ends_of_its_interval(window: Browser, suite: Path) -> None:
    window.open(suite)
    marks = window.js(
        "[...document.querySelectorAll('.whisker')].map((one) =>"
        " [one.querySelector('.range').getBoundingClientRect().width,"
        " one.querySelector('.dot').getBoundingClientRect().height])"
    )
    assert len(marks) >= 4 and all(width > 10 and height > 5 for width, height in marks)


def test_printed_suite_unfolds_only_the_runs_that_are_open(window: Browser, suite: Path) -> None:
    window.open(suite, "#run-2")
    window.until("document.getElementById('run-2').open")
    window.js("dispatchEvent(new Event('beforeprint'))")
    folded = "[...document.querySelectorAll('details')].filter((one) => one.checkVisibility() && !one.open)"
    assert window.js(f"{folded}.every((one) => one.classList.contains('run'))")
    assert window.js("document.querySelectorAll('details.run[open]').length") == 1
    window.js("dispatchEvent(new Event('afterprint'))")
    assert window.js("document.querySelectorAll('details[open]').length") == 1


def test_printed_page_has_the_verdict_and_no_controls(window: Browser, story: Path) -> None:
    window.open(story)
    window.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert window.js("document.querySelector('.banner').checkVisibility()")
        assert not window.js("document.getElementById('list').checkVisibility()")
        window.js("dispatchEvent(new Event('beforeprint'))")
        assert window.js("[...document.querySelectorAll('details')].every((one) => one.open)")
        assert window.call("Page.printToPDF")["data"].startswith("JVBERi0")
    finally:
        window.call("Emulation.setEmulatedMedia", media="")
