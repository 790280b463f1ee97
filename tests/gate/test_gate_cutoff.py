"""The time cut-off as a box meets it: index pages as they were, and both versions kept."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from http_rig import World, answer_of, box, say

POLICY = """
[[allow]]
id = "index"
hosts = ["pypi.test", "npm.test"]
index = "pypi"
[time]
cutoff = 2025-03-01T00:00:00Z
"""
PAGE = {
    "meta": {"api-version": "1.1"},
    "name": "thing",
    "versions": ["1.0", "2.0"],
    "files": [
        {"filename": f"thing-{version}-py3-none-any.whl", "url": f"https://pypi.test/files/thing-{version}-py3-none-any.whl",
         "hashes": {}, "upload-time": f"202{year}-01-01T00:00:00Z"}
        for version, year in (("1.0", 4), ("2.0", 6))
    ],
}  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    return World(folder)


async def index(head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
    """A Python index."""
    if b"/simple/" in head.split(b"\r\n")[0]:
        await say(writer, json.dumps(PAGE).encode(), b"Content-Type: application/vnd.pypi.simple.v1+json", b"ETag: x")
    else:
        await say(writer, b"a wheel")


async def test_newer_files_are_neither_listed_nor_given(world: World, tmp_path: Path) -> None:
    async with world.upstream("pypi.test", index) as outside, box(world, POLICY, tmp_path / "gate") as here:
        newest = "/files/thing-2.0-py3-none-any.whl"
        oldest = "/files/thing-1.0-py3-none-any.whl"
        assert answer_of(await here.get("pypi.test", oldest))[0] == 403  # nobody has listed it yet
        status, headers, body = answer_of(
            await here.get("pypi.test", "/simple/thing/", headers="Accept-Encoding: gzip\r\nIf-None-Match: x\r\n")
        )
        assert status == 200 and b"thing-1.0" in body and b"thing-2.0" not in body
        assert "etag" not in headers and headers["content-length"] == str(len(body))
        assert headers["content-type"].startswith("text/html")  # the client did not ask for JSON
        assert b"if-none-match" not in outside.heads[-1].lower() and b"gzip" not in outside.heads[-1]
        assert answer_of(await here.get("pypi.test", oldest))[2] == b"a wheel"
        status, headers, _ = answer_of(await here.get("pypi.test", newest))
        assert status == 403 and "reason=undated" in headers["x-caisson-decision"]
        done = next(one for one in here.events("http-done") if "cutoff" in one)
        assert done["cutoff"] == {"kept": 1, "removed": 1}
        received = json.loads((tmp_path / "gate/bodies" / done["resp_received_sha256"]).read_text())
        assert received == PAGE
        assert (tmp_path / "gate/bodies" / done["resp_sha256"]).read_bytes() == body


@pytest.mark.parametrize(
    ("body", "extra"),
    [(b"<html>no dates</html>", ()), (b"", ()), (b"\x1f\x8bbroken", (b"Content-Encoding: gzip",))],
)
async def test_a_page_that_says_nothing_of_dates_is_not_served(
    world: World, tmp_path: Path, body: bytes, extra: tuple[bytes, ...]
) -> None:
    async def answer(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        await say(writer, body, *extra)

    async with world.upstream("pypi.test", answer), box(world, POLICY, tmp_path / "gate") as here:
        status, _, served = answer_of(await here.get("pypi.test", "/simple/thing/"))
        assert (status == 403 and b"undated" in served) or (status == 200 and not body and not served)


async def test_a_compressed_page_is_read_all_the_same(world: World, tmp_path: Path) -> None:
    async def answer(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        await say(writer, gzip.compress(json.dumps(PAGE).encode()), b"Content-Encoding: gzip")

    accept = "Accept: application/vnd.pypi.simple.v1+json\r\n"
    async with world.upstream("pypi.test", answer), box(world, POLICY, tmp_path / "gate") as here:
        status, headers, body = answer_of(await here.get("pypi.test", "/simple/thing/", headers=accept))
        assert status == 200 and "content-encoding" not in headers
        assert [one["filename"] for one in json.loads(body)["files"]] == ["thing-1.0-py3-none-any.whl"]


async def test_replay_serves_what_the_box_of_the_recording_was_served(world: World, tmp_path: Path) -> None:
    async with world.upstream("pypi.test", index), box(world, POLICY, tmp_path / "first") as here:
        first = answer_of(await here.get("pypi.test", "/simple/thing/"))[2]
    world.pins["pypi.test"] = ("127.0.0.1", 1)
    async with box(world, POLICY, tmp_path / "second", replay=tmp_path / "first") as here:
        assert answer_of(await here.get("pypi.test", "/simple/thing/"))[2] == first


async def test_in_report_mode_pages_stay_as_they_are(world: World, tmp_path: Path) -> None:
    policy = 'action = "report"\n' + POLICY
    async with world.upstream("pypi.test", index), box(world, policy, tmp_path / "gate") as here:
        assert b"thing-2.0" in await here.get("pypi.test", "/simple/thing/")
        assert answer_of(await here.get("pypi.test", "/files/thing-2.0-py3-none-any.whl"))[0] == 200
        reported = [one for one in here.events("http") if one["verdict"] == "report"]
        assert [one["reason_code"] for one in reported] == ["undated"]
