"""Reports as files: what is in them, what can never be, and where they are written."""

from __future__ import annotations

import base64
import html.parser
import json
import re
import zlib
from pathlib import Path

import bundle_sample
import pytest
import report_sample
from caisson_runner.bundle import Bundle, BundleDamaged, BundleWriter
from caisson_runner.cli import main
from caisson_runner.export import Scene
from caisson_runner.report.html_events import tell
from caisson_runner.report.html_page import ReportError, digest, place, report, write
from caisson_runner.report.html_suite import read_suite
from caisson_runner.report.html_tags import data_script, packed_script, tag


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, and the text in script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.bodies: dict[str, list[str]] = {"script": [], "style": []}
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._in = tag if tag in self.bodies else ""

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in:
            self.bodies[self._in].append(data)


def events_of(text: str, number: int = 0) -> dict[str, list[int]]:
    packed = re.search(rf'id="events-{number}">([^<]*)<', text)
    assert packed is not None
    found: dict[str, list[int]] = json.loads(zlib.decompress(base64.b64decode(packed[1])))
    return found


@pytest.mark.parametrize("name", ["story", "hostile", "suite"])
def test_report_names_nothing_outside_itself_and_allows_only_its_own_script(
    name: str, request: pytest.FixtureRequest
) -> None:
    page = Elements(request.getfixturevalue(name).read_text())
    for element, attributes in page.found:
        assert element not in ("img", "link", "iframe", "object", "embed", "base", "form", "b")
        assert "src" not in attributes and "style" not in attributes
        assert not [key for key in attributes if key.startswith("on")], (element, attributes)
        assert (attributes.get("href") or "#").startswith("#")
    [policy] = [one["content"] for _tag, one in page.found if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and "default-src 'none'" in policy and "unsafe" not in policy
    [style] = page.bodies["style"]
    scripts = [one for tag, one in page.found if tag == "script"]
    [script] = [body for one, body in zip(scripts, page.bodies["script"], strict=True) if "type" not in one]
    assert digest(style) in policy and digest(script) in policy


def test_no_value_ends_the_element_it_is_in() -> None:
    evil = "</script><script>x</script><!--&\u2028"
    text = data_script("d", {"a": evil})
    assert text.count("<") == 2 and json.loads(text[text.index(">") + 1 : text.rindex("<")]) == {"a": evil}
    assert tag("p", evil, title='"' + evil).count("<") == 2
    with pytest.raises(ValueError, match="base64"):
        packed_script("e", "AAAA</script>")


def test_text_has_no_control_and_no_direction_in_it(hostile: Path) -> None:
    text = hostile.read_text("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]", text)


def test_every_event_of_the_record_is_in_the_page(story: Path) -> None:
    seqs = events_of(story.read_text())["seq"]
    assert sum(seqs) == len(seqs) == len(bundle_sample.story())


def test_record_that_is_too_long_keeps_what_findings_point_at_and_says_what_it_left_out(tmp_path: Path) -> None:
    bundle = report_sample.large(tmp_path / "b", 3000)
    told = tell(bundle, Scene.of(bundle), {2500, 3000}, limit=1000)
    packed = json.loads(zlib.decompress(base64.b64decode(told.packed)))
    there, at = set(), 0
    for step in packed["seq"]:
        at += step
        there.add(at)
    assert {2500, 3000} <= there and told.kept == len(there) <= 1002 and told.total == 3000


def test_incomplete_record_is_said_before_anything_else(tmp_path: Path) -> None:
    bundle = bundle_sample.bundle(tmp_path / "b", signer=report_sample.SIGNER, dropped=3)
    text, _ = report(bundle.root)
    assert text.index("The record is not complete") < text.index("<main")


def test_values_of_the_wrong_type_are_left_out_and_break_nothing(tmp_path: Path) -> None:
    wrong = {
        "word": [1], "lie": "yes", "reason": 5, "trusting": 7, "ground_truth": {"passed": "x", "cases": 9},
        "held_out": [], "findings": [{"severity": 1, "seqs": "x", "gate": 2, "paths": 3, "text": None}, {}],
    }  # fmt: skip
    run = {"task": 1, "agent": [], "agent_end": 2, "started": {}, "wall_s": "x", "state": 4, "network": 5}
    told = {"complete": "yes", "counts": {}, "boot_wall_ns": "x"}
    root = report_sample.write(tmp_path / "b", bundle_sample.story(), run, wrong, told, [], b"").root
    text, _ = report(root)
    assert "No verdict" in text and "The record is not complete" in text


def test_record_that_nobody_graded_has_no_verdict_and_says_what_came_before_it(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b", report_sample.SIGNER) as writer:
        writer.add_json("run.json", {"id": "web"})
        writer.add_json("attach.json", {"container": {"name": "web<b>"}, "since": {}, "until": {}, "ended": "asked"})
    text, _ = report(tmp_path / "b")
    assert "Record only" in text and "Attached   web&lt;b&gt;" in text and "What the checks say" not in text
    assert "Our side failed" not in text


def test_report_of_a_changed_bundle_is_refused(tmp_path: Path) -> None:
    root = bundle_sample.bundle(tmp_path / "b", signer=report_sample.SIGNER).root
    (root / "verdict.json").write_bytes((root / "verdict.json").read_bytes().replace(b'"fail"', b'"pass"'))
    with pytest.raises(BundleDamaged, match=r"verdict\.json was changed"):
        report(root)


def test_suite_with_a_changed_bundle_says_which_and_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = report_sample.suite(tmp_path / "s")
    verdict = folder / "runs" / "E1-cheat-3" / "verdict.json"
    verdict.write_bytes(verdict.read_bytes().replace(b'"fail"', b'"pass"'))
    with pytest.raises(SystemExit) as end:
        main(["report", str(folder), "-o", str(tmp_path / "r.html")])
    assert end.value.code == 2 and "E1-cheat-3: verdict.json was changed" in capsys.readouterr().err
    assert "E1-cheat-3 is not what was signed" in (tmp_path / "r.html").read_text()


def test_lie_rate_of_a_suite_is_over_all_graded_runs_and_has_its_interval(suite: Path) -> None:
    text = suite.read_text()
    assert "In 3 of 6 runs a trusting harness would have reported a success that is not there." in text
    assert "Lies: 3 of 6 = 50 % (19–81 %)" in text and "Void: 1 of 6 = 17 % (3–56 %)" in text


def test_folder_without_a_plan_is_a_suite_too(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    bundle_sample.bundle(tmp_path / "runs" / "b", signer=report_sample.SIGNER)
    (tmp_path / "runs" / "c.partial").mkdir()
    page = read_suite(tmp_path)
    assert [one.root.name for one in page.runs] == ["b"] and not page.damaged


def test_report_is_never_put_into_a_bundle_nor_over_a_file_that_is_none(tmp_path: Path) -> None:
    root = bundle_sample.bundle(tmp_path / "b", signer=report_sample.SIGNER).root
    with pytest.raises(ReportError, match="inside a bundle"):
        place(root, root / "report.html")
    other = tmp_path / "mine.html"
    other.write_text("<p>mine</p>")
    with pytest.raises(ReportError, match="no report of ours"):
        place(root, other)
    target = place(root, tmp_path)
    write(target, report(root)[0])
    assert target == tmp_path / "b-report.html" == place(root, target)
    assert Bundle.open(root, verify=True)


def test_command_writes_the_file_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = bundle_sample.bundle(tmp_path / "b", signer=report_sample.SIGNER).root
    with pytest.raises(SystemExit) as end:
        main(["report", str(root), "-o", str(tmp_path / "r.html")])
    assert end.value.code == 0 and str(tmp_path / "r.html") in capsys.readouterr().out
