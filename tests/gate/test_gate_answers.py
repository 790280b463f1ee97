"""The time cut-off: an index as it was at a moment, and no file that no page dated."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from caisson_gate.answers import CutOff, Plan, Planned
from caisson_gate.decide import Decision, Reason, Request, decide
from caisson_gate.indexes import SIMPLE_JSON, Page, Undated, npm_page, python_page
from caisson_gate.policy import parse
from hypothesis import given
from hypothesis import strategies as st

CUTOFF = datetime(2025, 3, 1, tzinfo=UTC)
POLICY = parse(
    b"""
schema = "caisson.gate/v1"
network_mode = "allowlist"
[time]
cutoff = 2025-03-01T00:00:00Z
[[allow]]
id = "index"
hosts = ["index.test"]
index = "pypi"
[[allow]]
id = "files"
hosts = ["files.test"]
index = "files"
[[allow]]
id = "registry"
hosts = ["registry.test"]
index = "npm"
[[allow]]
id = "archive"
hosts = ["archive.test"]
index = "apt"
[[allow]]
id = "model"
hosts = ["model.test"]
"""
)


def asked(url: str) -> Decision:
    host, _, path = url.partition("/")
    raw = host.encode()
    found = decide(
        POLICY,
        Request("http", 443, "https", name_dns=raw, name_host=raw, method=b"GET", path=b"/" + path.encode()),
    )
    assert found.allowed, found
    return found


def served(cut: CutOff, url: str, page: object, accept: bytes = SIMPLE_JSON.encode()) -> Page:
    decision = asked(url)
    planned = cut.plan(decision, accept)
    assert planned.plan is Plan.READ
    return cut.answer(decision, planned, "https", json.dumps(page).encode())


def wheel(version: str, uploaded: str | None, **more: Any) -> dict[str, Any]:
    file = {
        "filename": f"pkg-{version}-py3-none-any.whl",
        "url": f"https://files.test/packages/ab/pkg-{version}-py3-none-any.whl",
        "hashes": {"sha256": "0" * 64},
        "core-metadata": True,
        **more,
    }
    return file if uploaded is None else {**file, "upload-time": uploaded}


SIMPLE = {
    "meta": {"api-version": "1.1", "_last-serial": 99},
    "name": "pkg",
    "versions": ["1.0", "1.1", "2.0", "3.0"],
    "files": [
        wheel("1.0", "2024-01-01T00:00:00.123456Z"),
        wheel("1.1", "2025-03-01T00:00:00Z"),
        wheel("2.0", "2025-03-01T00:00:00.000001Z"),
        wheel("3.0", None),
    ],
    "news": "2.0 fixes it",
}


def test_a_simple_page_lists_what_was_there_at_the_cut_off() -> None:
    page = served(CutOff(CUTOFF, False), "index.test/simple/pkg/", SIMPLE)
    document = json.loads(page.body)
    assert [file["filename"][4:7] for file in document["files"]] == ["1.0", "1.1"]
    assert document["versions"] == ["1.0", "1.1"]
    assert (page.kept, page.removed) == (2, 2)
    assert b"2.0" not in page.body
    assert b"serial" not in page.body
    assert page.content_type == SIMPLE_JSON


def test_a_client_that_reads_html_gets_the_same_page_as_html() -> None:
    page = served(CutOff(CUTOFF, False), "index.test/simple/pkg/", SIMPLE, accept=b"*/*")
    assert page.content_type.startswith("text/html")
    assert b"pkg-1.1-py3-none-any.whl#sha256=" in page.body
    assert b"2.0-" not in page.body


def test_markup_in_a_file_name_stays_text() -> None:
    evil = {
        **SIMPLE,
        "files": [wheel("1.0", "2024-01-01T00:00:00Z", filename='"><script>', **{"requires-python": '">'})],
    }
    page = served(CutOff(CUTOFF, False), "index.test/simple/pkg/", evil, accept=b"text/html")
    assert b"<script>" not in page.body


def test_a_file_passes_only_when_a_page_dated_it() -> None:
    cut = CutOff(CUTOFF, False)
    old = asked("files.test/packages/ab/pkg-1.0-py3-none-any.whl")
    new = asked("files.test/packages/ab/pkg-2.0-py3-none-any.whl")
    assert cut.plan(old, None).reason is Reason.UNDATED
    served(cut, "index.test/simple/pkg/", SIMPLE)
    assert cut.plan(old, None).plan is Plan.PASS
    assert cut.plan(asked("files.test/packages/ab/pkg-1.0-py3-none-any.whl.metadata"), None).plan is Plan.PASS
    refused = cut.plan(new, None)
    assert refused.reason is Reason.UNDATED
    assert "2025-03-01" in refused.detail


def test_one_boxs_pages_open_nothing_for_another() -> None:
    one, two = CutOff(CUTOFF, False), CutOff(CUTOFF, False)
    served(one, "index.test/simple/pkg/", SIMPLE)
    assert two.plan(asked("files.test/packages/ab/pkg-1.0-py3-none-any.whl"), None).plan is Plan.REFUSE


@pytest.mark.parametrize(
    "url",
    [
        "index.test/simple/",
        "index.test/simple",
        "index.test/packages/pkg-9.0.tar.gz",
        "index.test/x/pkg.whl",
        "files.test/any",
        "registry.test/pkg/-/pkg-9.0.0.tgz",
        "registry.test/-/v1/search",
        "archive.test/debian/pool/x.deb",
        "archive.test/debian/dists/stable/InRelease",
    ],
)
def test_what_nobody_dated_is_refused_before_it_is_asked_for(url: str) -> None:
    planned = CutOff(CUTOFF, False).plan(asked(url), b"*/*")
    assert planned.plan is Plan.REFUSE
    assert planned.reason is Reason.UNDATED
    assert CutOff(CUTOFF, True).plan(asked(url), b"*/*").plan is Plan.PASS


def test_a_host_that_is_no_index_is_left_alone() -> None:
    assert CutOff(CUTOFF, False).plan(asked("model.test/v1/x"), None) == Planned(Plan.PASS)
    assert CutOff.of(parse(b'schema = "caisson.gate/v1"')) is None
    assert CutOff.of(POLICY) is not None


@pytest.mark.parametrize(
    "body",
    [b"", b"<html><a href=x>pkg-9.whl</a></html>", b"[]", b"{}", b'{"files": 1}', b"[" * 100_000, b"null", b"\xff"],
)
def test_a_page_without_dates_is_served_to_nobody(body: bytes) -> None:
    cut = CutOff(CUTOFF, False)
    for url in ("index.test/simple/pkg/", "index.test/project/pkg/", "registry.test/pkg"):
        decision = asked(url)
        with pytest.raises(Undated):
            cut.answer(decision, cut.plan(decision, None), "https", body)
    lenient = CutOff(CUTOFF, True)
    decision = asked("index.test/simple/pkg/")
    assert lenient.answer(decision, lenient.plan(decision, None), "https", body).body == body


def project(**more: Any) -> dict[str, Any]:
    def file(version: str, uploaded: str) -> dict[str, Any]:
        return {"url": f"https://files.test/p/pkg-{version}.tar.gz", "upload_time_iso_8601": uploaded}

    return {
        "info": {"name": "pkg", "version": "2.0", "description": "2.0 fixes the bug in add", "summary": "s"},
        "last_serial": 7,
        "releases": {
            "0.9": [],
            "1.0": [file("1.0", "2024-01-01T00:00:00Z")],
            "1.5": [{"url": "https://files.test/p/pkg-1.5.tar.gz", "upload_time": "2025-02-01T00:00:00"}],
            "2.0": [file("2.0", "2025-06-01T00:00:00Z")],
        },
        "urls": [file("2.0", "2025-06-01T00:00:00Z")],
        "vulnerabilities": [{"id": "new"}],
        **more,
    }


def test_a_projects_document_says_nothing_of_a_newer_release() -> None:
    page = served(CutOff(CUTOFF, False), "index.test/pypi/pkg/json", project())
    document = json.loads(page.body)
    assert list(document["releases"]) == ["1.0", "1.5"]
    assert document["info"]["version"] == "1.5"
    assert document["info"]["description"] is None
    assert document["urls"][0]["url"].endswith("pkg-1.5.tar.gz")
    assert document["vulnerabilities"] == []
    assert b"fixes" not in page.body
    assert b"2.0" not in page.body


def test_a_release_newer_than_the_cut_off_is_refused_by_its_own_address() -> None:
    newer = project()
    del newer["releases"]
    with pytest.raises(Undated):
        served(CutOff(CUTOFF, False), "index.test/pypi/pkg/2.0/json", newer)


def packument() -> dict[str, Any]:
    def manifest(version: str) -> dict[str, Any]:
        return {
            "version": version,
            "dist": {"tarball": f"https://registry.test/@s/pkg/-/pkg-{version}.tgz"},
            "deprecated": "see 3.0.0",
        }

    return {
        "_id": "@s/pkg",
        "name": "@s/pkg",
        "dist-tags": {"latest": "3.0.0", "next": "2.0.0-rc.1", "old": "1.0.0"},
        "versions": {version: manifest(version) for version in ("1.0.0", "1.1.0", "2.0.0-rc.1", "3.0.0", "4.0.0")},
        "time": {
            "created": "2020-01-01T00:00:00.000Z",
            "modified": "2026-01-01T00:00:00.000Z",
            "1.0.0": "2024-01-01T00:00:00.000Z",
            "1.1.0": "2025-02-01T00:00:00.000Z",
            "2.0.0-rc.1": "2025-02-10T00:00:00.000Z",
            "3.0.0": "2025-05-01T00:00:00.000Z",
        },
        "readme": "3.0.0 fixes it",
    }


def test_a_packument_is_the_one_of_then() -> None:
    cut = CutOff(CUTOFF, False)
    page = served(cut, "registry.test/@s%2fpkg", packument())
    document = json.loads(page.body)
    assert list(document["versions"]) == ["1.0.0", "1.1.0", "2.0.0-rc.1"]
    assert document["dist-tags"] == {"next": "2.0.0-rc.1", "old": "1.0.0", "latest": "1.1.0"}
    assert document["time"]["modified"] == "2025-02-10T00:00:00.000Z"
    assert b"3.0.0" not in page.body
    assert b"4.0.0" not in page.body
    assert cut.plan(asked("registry.test/@s/pkg/-/pkg-1.1.0.tgz"), None).plan is Plan.PASS
    assert cut.plan(asked("registry.test/@s/pkg/-/pkg-3.0.0.tgz"), None).plan is Plan.REFUSE


def test_the_full_document_is_asked_for_because_the_short_one_has_no_times() -> None:
    cut = CutOff(CUTOFF, False)
    planned = cut.plan(asked("registry.test/pkg"), b"application/vnd.npm.install-v1+json")
    assert planned.accept == b"application/json"
    short = {key: value for key, value in packument().items() if key != "time"}
    with pytest.raises(Undated):
        cut.answer(asked("registry.test/pkg"), planned, "https", json.dumps(short).encode())


def test_a_link_that_is_no_request_is_no_key() -> None:
    odd = {
        **SIMPLE,
        "files": [wheel("1.0", "2024-01-01T00:00:00Z", url=url) for url in ("http://[x", "//", "ftp://a/b", "\x00")],
    }
    page = served(CutOff(CUTOFF, False), "index.test/simple/pkg/", odd)
    assert not any(b"ftp" in key for key in page.files)


def test_relative_links_are_files_of_the_index_itself() -> None:
    cut = CutOff(CUTOFF, False)
    served(
        cut,
        "index.test/simple/pkg/",
        {**SIMPLE, "files": [wheel("1.0", "2024-01-01T00:00:00Z", url="../../f/pkg-1.0.whl")]},
    )
    assert cut.plan(asked("index.test/f/pkg-1.0.whl"), None).plan is Plan.PASS


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("2024-01-01T00:00:00Z"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "files",
                    "url",
                    "urls",
                    "upload-time",
                    "releases",
                    "info",
                    "versions",
                    "time",
                    "dist",
                    "tarball",
                    "dist-tags",
                    "name",
                    "meta",
                    "1.0",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_document_is_a_page_or_undated(document: object) -> None:
    body = json.dumps(document).encode()
    for read in (
        lambda undated, as_html: python_page(body, "https://index.test/simple/pkg/", CUTOFF, undated, as_html),
        lambda undated, _: npm_page(body, "https://registry.test/pkg", CUTOFF, undated),
    ):
        for undated in (False, True):
            for as_html in (False, True):
                try:
                    assert isinstance(read(undated, as_html), Page)
                except Undated:
                    pass
