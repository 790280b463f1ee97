"""A recording stands for the outside: same request, same answer, nothing else; and other tools can read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from caisson_gate.replay import ReplayUnusable
from h2_rig import H2Client
from http_rig import LIMIT_S, World, answer_of, box, finish, forget_peak, peak, say
from mitmproxy import http
from mitmproxy.io import FlowReader

A = '[[allow]]\nid = "a"\nhosts = ["a.test"]\nports = [443, 80]\nmethods = ["GET", "HEAD", "POST"]\n'
BIG = 48 << 20


async def counter(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
    """Says something else every time, as the world does."""
    number = counter.calls = getattr(counter, "calls", 0) + 1  # type: ignore[attr-defined]
    if b"/big" in head:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(BIG >> 20):
            writer.write(b"%x\r\n%s\r\n" % (1 << 20, b"b" * (1 << 20)))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    elif b"/moved" in head:
        await say(writer, b"", b"Location: /elsewhere", status=b"302 Found")
    else:
        await say(writer, b"%d:" % number + body, b"X-Number: %d" % number, b"Content-Type: text/plain")


async def ask(here: object, path: str, body: bytes | None = None, port: int = 443) -> tuple[int, dict[str, str], bytes]:
    method = "GET" if body is None else "POST"
    length = "" if body is None else f"Content-Length: {len(body)}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nX-Random: {id(object())}\r\n{length}\r\n"
    return answer_of(await here.ask("a.test", head.encode() + (body or b""), port, tls=port == 443))  # type: ignore[attr-defined]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def recording(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Path, World]]:
    """One recording, made once: the world in it is gone when the tests run."""
    folder = Path(tmp_path_factory.mktemp("recording"))
    (folder / "world").mkdir()
    world = World(folder / "world")
    async with world.upstream("a.test", counter), box(world, A, folder / "gate") as here:
        for path in ("/one", "/two", "/two", "/two?q=1", "/moved", "/big"):
            assert (await ask(here, path))[0] in (200, 302)
        assert (await ask(here, "/post", b"first"))[0] == 200
        assert (await ask(here, "/post", b"second"))[0] == 200
        assert (await ask(here, "/none", port=80))[0] == 502
        await here.get("b.test")
        await here.proxy.closed("box")
    world.pins.clear()
    world.pins["a.test"] = ("127.0.0.1", 1)
    yield folder / "gate", world


@pytest.fixture
def gate(recording: tuple[Path, World]) -> Path:
    return recording[0]


@pytest.fixture
def world(recording: tuple[Path, World]) -> World:
    return recording[1]


async def test_the_same_request_gets_the_same_answer(gate: Path, world: World, tmp_path: Path) -> None:
    rounds = []
    for number in range(2):
        async with box(world, A, tmp_path / str(number), replay=gate) as here:
            paths = ("/two", "/one", "/two", "/two", "/two?q=1", "/moved")
            made = [await ask(here, path) for path in paths]
            made += [await ask(here, "/post", body) for body in (b"second", b"first")]
            rounds.append(made)
            done = here.events("http-done")
            assert len(done) == 8 and all("replayed" in one for one in done)
            assert not any("upstream_ip" in one for one in done)
    assert rounds[0] == rounds[1]
    bodies = [body for _, _, body in rounds[0]]
    assert bodies[:6] == [b"2:", b"1:", b"3:", b"3:", b"4:", b""]  # in the order recorded, then the last again
    assert rounds[0][5][1]["location"] == "/elsewhere"
    assert bodies[6].endswith(b":second") and bodies[7].endswith(b":first")


@pytest.mark.parametrize(
    ("path", "body", "port"),
    [("/three", None, 443), ("/two?q=2", None, 443), ("/one", None, 80), ("/post", b"third", 443), ("/one", b"", 443)],
)
async def test_what_was_not_recorded_is_refused_and_written(
    gate: Path, world: World, tmp_path: Path, path: str, body: bytes | None, port: int
) -> None:
    async with box(world, A, tmp_path / "gate", replay=gate) as here:
        status, headers, _ = await ask(here, path, body, port)
        assert status == 502 and "reason=not_recorded" in headers["x-caisson-decision"]
        done = await here.event("http-done")
        assert (done["verdict"], done["reason_code"]) == ("deny", "not_recorded")


async def test_the_policy_counts_in_replay_too(gate: Path, world: World, tmp_path: Path) -> None:
    policy = A + 'paths = ["/one"]\n'
    async with box(world, policy, tmp_path / "gate", replay=gate) as here:
        assert (await ask(here, "/one"))[0] == 200
        assert (await ask(here, "/two"))[0] == 403


async def test_a_large_recorded_answer_is_served_in_flat_memory(gate: Path, world: World, tmp_path: Path) -> None:
    async with box(world, A, tmp_path / "gate", replay=gate, record=False) as here:
        before, got = forget_peak(), 0
        reader, writer = await here.connect("a.test")
        writer.write(b"GET /big HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        assert b"Content-Length: %d\r\n" % BIG in head
        while chunk := await asyncio.wait_for(reader.read(1 << 16), LIMIT_S):
            got += len(chunk)
        writer.close()
        assert got == BIG
        assert peak() - before < 24 << 10


async def test_a_recording_is_served_over_http2_as_well(gate: Path, world: World, tmp_path: Path) -> None:
    async with box(world, A, tmp_path / "gate", replay=gate) as here:
        client = await H2Client.open(here, "a.test")
        streams = [client.get("a.test", path) for path in ("/one", "/two", "/three")]
        answers = [await client.wait(stream) for stream in streams]
        assert [(one.status, one.body) for one in answers[:2]] == [(200, b"1:"), (200, b"2:")]
        assert answers[2].status == 502
        client.close()


async def test_a_keep_alive_connection_goes_on_through_replayed_answers(
    gate: Path, world: World, tmp_path: Path
) -> None:
    async with box(world, A, tmp_path / "gate", replay=gate) as here:
        reader, writer = await here.connect("a.test")
        for path, body in ((b"/one", b"1:"), (b"/two", b"2:"), (b"/two", b"3:")):
            writer.write(b"GET %s HTTP/1.1\r\nHost: a.test\r\n\r\n" % path)
            answer = await asyncio.wait_for(reader.readuntil(body), LIMIT_S)
            assert answer.startswith(b"HTTP/1.1 200")
        writer.write(b"GET /one HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
        assert (await finish(reader, writer)).endswith(b"1:")


@pytest.mark.parametrize("harm", ["changed-event", "changed-body", "missing-body", "no-journal", "no-answers"])
async def test_a_recording_that_is_not_whole_opens_no_box(gate: Path, world: World, tmp_path: Path, harm: str) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(gate, copy)
    journal = copy / "events.jsonl"
    bodies = sorted((copy / "bodies").iterdir())
    if harm == "changed-event":
        journal.write_bytes(journal.read_bytes().replace(b'"status":200', b'"status":201', 1))
    elif harm == "changed-body":
        bodies[0].write_bytes(b"something else")
    elif harm == "missing-body":
        bodies[0].unlink()
    elif harm == "no-journal":
        journal.unlink()
    else:
        journal.write_bytes(b"")
    with pytest.raises(ReplayUnusable):
        async with box(world, A, tmp_path / "gate", replay=copy):
            pass


async def test_a_cut_off_is_not_replayed_from_under_another_policy(gate: Path, world: World, tmp_path: Path) -> None:
    with pytest.raises(ReplayUnusable, match="another policy"):
        async with box(world, A + "[time]\ncutoff = 2025-03-01T00:00:00Z\n", tmp_path / "gate", replay=gate):
            pass


def test_the_har_says_what_happened(gate: Path) -> None:
    log = json.loads((gate / "flows.har").read_text())["log"]
    assert log["version"] == "1.2" and len(log["entries"]) == 10
    one, post = log["entries"][0], next(e for e in log["entries"] if e["request"]["method"] == "POST")
    assert (one["request"]["url"], one["response"]["status"]) == ("https://a.test/one", 200)
    assert one["response"]["content"] | {"_sha256": ""} == {
        "size": 2,
        "mimeType": "text/plain",
        "text": "1:",
        "_sha256": "",
    }
    assert post["request"]["postData"]["text"] == "first"
    big = next(entry for entry in log["entries"] if entry["request"]["url"].endswith("/big"))
    assert big["response"]["content"]["size"] == BIG and "bodies/" in big["response"]["content"]["comment"]
    refused = log["entries"][-1]
    assert (refused["response"]["status"], refused["_caisson"]["reason_code"]) == (403, "not_allowed")


def test_mitmproxys_own_reader_takes_the_flow_file(gate: Path) -> None:
    with (gate / "flows.mitm").open("rb") as file:
        flows = [flow for flow in FlowReader(file).stream() if isinstance(flow, http.HTTPFlow)]
    assert len(flows) == 10
    assert flows[0].request.url == "https://a.test/one" and flows[0].response is not None
    assert flows[0].response.text == "1:"
    assert flows[-1].error is not None and "default" in flows[-1].comment
