"""HTTP and HTTPS through the proxy: what passes, what is refused, and that the canary outside agrees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from caisson_gate.ca import Authority
from http_rig import LIMIT_S, World, answer_of, box, echo, finish, forget_peak, hello, peak, say

A = '[[allow]]\nid = "a"\nhosts = ["a.test"]\nports = [443, 80]\nmethods = ["GET", "HEAD", "POST", "PUT"]\n'
GET, POST = (method + b" / HTTP/1.1\r\nHost: a.test\r\n" for method in (b"GET", b"POST"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    return World(folder)


async def test_an_allowed_request_goes_through_and_is_recorded(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", hello) as outside, box(world, A, tmp_path / "gate") as here:
        status, _, body = answer_of(await here.get("a.test", "/x?y=1"))
        assert (status, body) == (200, b"hello from outside\n")
        assert outside.heads[0].startswith(b"GET /x?y=1 HTTP/1.1\r\n")
        decided = await here.event("http")
        done = await here.event("http-done")
        assert (decided["verdict"], decided["rule"], decided["url"]) == ("allow", "a", "https://a.test/x?y=1")
        assert decided["target"] == {"scheme": "https", "host": "a.test", "port": 443, "path": "/x?y=1"}
        assert decided["tls"]["version"] == "TLSv1.3" and len(decided["tls"]["fingerprint"]) == 32
        assert (done["of"], done["status"], done["resp_len"]) == (decided["seq"], 200, len(body))
        assert done["upstream_ip"] == "127.0.0.1" and done["upstream_tls"]["version"] == "TLSv1.3"
        assert (tmp_path / "gate/bodies" / done["resp_sha256"]).read_bytes() == body


async def test_a_refused_request_never_reaches_the_outside(world: World, tmp_path: Path) -> None:
    async with (
        world.upstream("a.test", hello) as outside,
        world.upstream("b.test", hello) as other,
        box(world, A, tmp_path / "gate") as here,
    ):
        status, headers, body = answer_of(await here.ask("b.test", b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n"))
        assert status == 403
        assert headers["x-caisson-decision"] == "deny; rule=default; reason=not_allowed"
        assert json.loads(body)["reason"] == "not_allowed"
        assert (await here.event("http", verdict="deny"))["reason_code"] == "not_allowed"
        assert not outside.seen and not other.seen and not other.connections


async def test_without_record_only_digests_are_kept(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", hello), box(world, A, tmp_path / "gate", record=False) as here:
        await here.get("a.test")
        done = await here.event("http-done")
        assert done["resp_sha256"] and "resp_kept" not in done
        assert not (tmp_path / "gate/bodies").exists()


async def test_plain_http_goes_through_too(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", echo, tls=False), box(world, A, tmp_path / "gate") as here:
        status, _, body = answer_of(await here.get("a.test", port=80, tls=False))
        assert status == 200 and b"Host: a.test\r\n" in body


async def test_upstream_gets_the_canonical_request_and_not_the_clients_spelling(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", echo) as outside, box(world, A, tmp_path / "gate") as here:
        request = b"GET /%41/./b/../c HTTP/1.1\r\nHost: A.TEST.:443\r\nProxy-Connection: x\r\nConnection: close\r\n\r\n"
        assert answer_of(await here.ask("a.test", request))[0] == 200
        assert outside.heads[0].startswith(b"GET /A/c HTTP/1.1\r\nHost: a.test\r\n")
        assert b"roxy" not in outside.heads[0]


async def test_every_request_of_a_connection_is_judged(world: World, tmp_path: Path) -> None:
    async with world.upstream("a.test", hello) as outside, box(world, A, tmp_path / "gate") as here:
        reader, writer = await here.connect("a.test")
        writer.write(b"GET /1 HTTP/1.1\r\nHost: a.test\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"outside\n"), LIMIT_S)
        writer.write(b"GET /2 HTTP/1.1\r\nHost: b.test\r\n\r\nGET /3 HTTP/1.1\r\nHost: a.test\r\n\r\n")
        status, headers, _ = answer_of(await finish(reader, writer))
        assert status == 421 and "host_mismatch" in headers["x-caisson-decision"]
        assert [head.split()[1] for head in outside.heads] == [b"/1"]
        assert len(here.events("http")) == 2  # what was pipelined behind the refusal is not even read


@pytest.mark.parametrize(
    ("name", "request_bytes"),
    [
        ("both-lengths", POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("two-lengths", POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nnonce!"),
        ("length-list", POST + b"Content-Length: 5, 5\r\n\r\nnonce"),
        ("length-plus", POST + b"Content-Length: +5\r\n\r\nnonce"),
        ("two-codings", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        ("coding-1.0", b"POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("folded", GET + b"X: 1\r\n nonce\r\n\r\n"),
        ("bare-lf", b"GET / HTTP/1.1\nHost: a.test\n\n"),
        ("bare-lf-inside", b"GET / HTTP/1.1\r\nHost: a.test\nX: nonce\r\n\r\n"),
        ("bare-cr", GET + b"X: a\rnonce\r\n\r\n"),
        ("space-before-colon", b"GET / HTTP/1.1\r\nHost : a.test\r\n\r\n"),
        ("two-hosts", b"GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n"),
        ("no-host", b"GET / HTTP/1.1\r\nX: nonce\r\n\r\n"),
        ("nul", GET + b"X: \0nonce\r\n\r\n"),
        ("nul-in-host", b"GET / HTTP/1.1\r\nHost: a\0.test\r\n\r\n"),
        ("userinfo", b"GET / HTTP/1.1\r\nHost: nonce@a.test\r\n\r\n"),
        ("backslash", b"GET / HTTP/1.1\r\nHost: a.test\\nonce\r\n\r\n"),
        ("encoded-slash", b"GET /a%2f..%2fnonce HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ("space-in-target", b"GET /a nonce HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ("other-version", b"GET / HTTP/3.0\r\nHost: a.test\r\n\r\n"),
        ("authority-form", b"GET a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ("endless-head", GET + b"X: " + b"nonce" * 20_000),
    ],
)  # fmt: skip
async def test_what_could_be_read_in_two_ways_is_refused(
    world: World, tmp_path: Path, name: str, request_bytes: bytes
) -> None:
    async with world.upstream("a.test", echo) as outside, box(world, A, tmp_path / "gate") as here:
        status, headers, _ = answer_of(await here.ask("a.test", request_bytes))
        assert status == 400 and "reason=malformed" in headers["x-caisson-decision"], name
        (event,) = here.events("http")
        assert (event["verdict"], event["reason_code"]) == ("deny", "malformed")
        assert not outside.seen


@pytest.mark.parametrize(
    "request_bytes",
    [
        GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n\r\n",
        GET + b"Connection: Upgrade\r\nUpgrade: nonce\r\n\r\n",
        GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
        b"CONNECT-UDP / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nTrailer: x\r\n\r\n0\r\nx: nonce\r\n\r\n",
    ],
)  # fmt: skip
async def test_other_protocols_do_not_get_through(world: World, tmp_path: Path, request_bytes: bytes) -> None:
    async with world.upstream("a.test", echo) as outside, box(world, A, tmp_path / "gate") as here:
        status, headers, _ = answer_of(await here.ask("a.test", request_bytes))
        assert status in (400, 403) and "reason=protocol" in headers["x-caisson-decision"]
        (event,) = here.events("http")
        assert (event["verdict"], event["reason_code"]) == ("deny", "protocol")
        assert not outside.seen


async def test_chunked_trailers_that_were_not_announced_end_the_connection(world: World, tmp_path: Path) -> None:
    request = POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nx: nonce\r\n\r\n"
    async with world.upstream("a.test", echo) as outside, box(world, A, tmp_path / "gate") as here:
        assert b"200" not in (await here.ask("a.test", request))[:20]
        assert b"nonce" not in outside.seen


async def _feed(writer: asyncio.StreamWriter, size: int) -> int:
    """Push ``size`` bytes; how many went before the other side stopped taking them."""
    sent = 0
    try:
        while sent < size:
            writer.write(b"n" * (1 << 16))
            sent += 1 << 16
            await writer.drain()
    except OSError:
        pass
    return sent


@pytest.mark.parametrize("name", ["b.test", "a.test"])
async def test_an_upload_that_is_refused_is_cut_and_not_swallowed(world: World, tmp_path: Path, name: str) -> None:
    """Refused for its host, or for its declared length: the refusal arrives and the upload ends early."""
    size = 150 << 20
    async with world.upstream(name, echo) as outside, box(world, A, tmp_path / "gate") as here:
        reader, writer = await here.connect(name, 80, tls=False)
        writer.write(
            f"POST / HTTP/1.1\r\nHost: {name}\r\nExpect: 100-continue\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        upload = asyncio.create_task(_feed(writer, size))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        assert head.startswith(b"HTTP/1.1 4")  # and no 100 before it
        assert await asyncio.wait_for(upload, LIMIT_S) < size // 4
        writer.close()
        assert not outside.seen
        assert (await here.event("http"))["verdict"] == "deny"


async def test_an_upload_without_a_length_ends_at_the_limit(world: World, tmp_path: Path) -> None:
    policy = A + "max_request_bytes = 100_000\n"
    async with world.upstream("a.test", echo) as outside, box(world, policy, tmp_path / "gate") as here:
        reader, writer = await here.connect("a.test")
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%s\r\n" % (1 << 14, b"x" * (1 << 14))
        for _ in range(20):
            writer.write(chunk)
        status, headers, _ = answer_of(await finish(reader, writer))
        assert status == 413 and "too_large" in headers["x-caisson-decision"]
        done = await here.event("http-done")
        assert (done["verdict"], done["reason_code"], done["req_cut"]) == ("deny", "too_large", True)
        assert done["req_len"] <= 100_000 and len(outside.heads) == 1


async def test_an_answer_over_the_limit_is_refused_or_visibly_cut(world: World, tmp_path: Path) -> None:
    async def long(head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        if b"/known" in head:
            await say(writer, b"x" * 200_000)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b"x" * 200_000)
            writer.close()

    policy = A + "max_response_bytes = 100_000\n"
    async with world.upstream("a.test", long), box(world, policy, tmp_path / "gate") as here:
        status, headers, _ = answer_of(await here.get("a.test", "/known"))
        assert status == 502 and "too_large" in headers["x-caisson-decision"]
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            reader, _writer = await here.connect("a.test", 80, tls=False)
            _writer.write(b"GET /unknown HTTP/1.0\r\nHost: a.test\r\n\r\n")
            await asyncio.wait_for(reader.readexactly(200_000), LIMIT_S)
        ended = [one.get("reason_code") for one in here.events("http-done")]
        assert ended[0] == "too_large"


async def test_hints_towards_other_ways_out_are_taken_from_answers(world: World, tmp_path: Path) -> None:
    async def answer(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        await say(writer, b"ok", b'Alt-Svc: h3=":443"', b"X-Caisson-Decision: forged", b"X-Other: kept")

    async with world.upstream("a.test", answer), box(world, A, tmp_path / "gate") as here:
        _, headers, _ = answer_of(await here.get("a.test"))
        assert "alt-svc" not in headers and "x-caisson-decision" not in headers
        assert headers["x-other"] == "kept"
        done = await here.event("http-done")
        assert ["Alt-Svc", 'h3=":443"'] in done["resp_received"]["headers"]


async def test_an_address_that_is_denied_is_not_dialled(world: World, tmp_path: Path) -> None:
    async def rebound(_name: str, _port: int) -> Sequence[str]:
        return ["192.0.2.7", "127.0.0.1"]

    async with world.upstream("other.test", hello) as outside:
        async with box(world, A, tmp_path / "gate", lookup=rebound) as here:
            status, headers, _ = answer_of(await here.get("a.test"))
            assert status == 403 and "address_denied" in headers["x-caisson-decision"]
            assert (await here.event("http"))["reason_code"] == "address_denied"
            assert not outside.connections


async def test_an_upstream_must_prove_its_name(world: World, tmp_path: Path) -> None:
    stranger = Authority("somebody else")
    for number, options in enumerate(({"ca": stranger}, {})):
        name = "a.test" if options else "wrong.test"
        async with world.upstream(name, echo, **options) as outside:
            world.pins["a.test"] = ("127.0.0.1", outside.port)
            async with box(world, A, tmp_path / f"gate{number}") as here:
                status, headers, _ = answer_of(await here.get("a.test", headers="X-Nonce: nonce\r\n"))
                assert status == 502 and "upstream_tls_failed" in headers["x-caisson-decision"]
                assert (await here.event("http-done"))["reason_code"] == "upstream_tls_failed"
                assert not outside.seen


async def test_an_upstream_that_is_not_there_is_said_to_be_so(world: World, tmp_path: Path) -> None:
    world.pins["a.test"] = ("127.0.0.1", 1)
    async with box(world, A, tmp_path / "gate") as here:
        status, headers, _ = answer_of(await here.get("a.test"))
        assert status == 502 and headers["x-caisson-decision"].startswith("error;")
        assert (await here.event("http-done"))["reason_code"] == "upstream_failed"


async def test_a_client_that_does_not_trust_the_run_is_told_apart(world: World, tmp_path: Path) -> None:
    import ssl

    async with world.upstream("a.test", echo) as outside, box(world, A, tmp_path / "gate") as here:
        port = await here.listen("a.test")
        other = ssl.create_default_context(cadata=world.authority.pem.decode())
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", port, ssl=other, server_hostname="a.test")
        await here.event("tls", reason_code="tls_client_rejected_ca")
        assert not outside.connections


async def test_no_answer_has_a_body_to_head_and_304(world: World, tmp_path: Path) -> None:
    async def answer(head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        status = b"200 OK" if head.startswith(b"HEAD") else b"304 Not Modified"
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: 500\r\n\r\n" % status)

    async with world.upstream("a.test", answer), box(world, A, tmp_path / "gate") as here:
        raw = await here.ask("a.test", b"HEAD / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
        assert answer_of(raw) == (200, {"content-length": "500"}, b"")
        assert answer_of(await here.get("a.test"))[0] == 304
        assert answer_of(await here.ask("b.test", b"HEAD / HTTP/1.1\r\nHost: b.test\r\n\r\n"))[2] == b""


async def test_a_box_that_leaves_early_still_leaves_a_whole_record(world: World, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def slow(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome")
        begun.set()
        await asyncio.sleep(LIMIT_S)

    async with world.upstream("a.test", slow), box(world, A, tmp_path / "gate") as here:
        reader, writer = await here.connect("a.test")
        writer.write(GET + b"\r\n")
        await asyncio.wait_for(reader.readuntil(b"some"), LIMIT_S)
        writer.transport.abort()
        done = await here.event("http-done")
        assert done["error"] and done["resp_len"] == 4 and done["resp_cut"]


@pytest.mark.parametrize("address", ["192.0.2.9", "2001:db8::9"])
async def test_an_address_that_a_rule_lists_is_reached_by_its_literal(
    world: World, tmp_path: Path, address: str
) -> None:
    policy = f'[[allow]]\nid = "lab"\naddresses = ["{address}"]\nports = [80]\n'
    authority = f"[{address}]" if ":" in address else address
    async with world.upstream("lab", hello, tls=False) as outside:
        world.pins[address] = ("127.0.0.1", outside.port)
        async with box(world, policy, tmp_path / "gate") as here:
            local = await here.listen(None, 80, address=address)
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            writer.write(f"GET /x HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n".encode())
            status, _, body = answer_of(await finish(reader, writer))
            assert (status, body) == (200, b"hello from outside\n"), here.events("http")


async def test_what_a_box_asked_is_told_when_it_leaves_before_the_address_is_found(
    world: World, tmp_path: Path
) -> None:
    looking = asyncio.Event()

    async def lookup(_name: str, _port: int) -> Sequence[str]:
        looking.set()
        await asyncio.sleep(LIMIT_S)
        return ["192.0.2.1"]

    async with box(world, A, tmp_path / "gate", lookup=lookup) as here:
        _, writer = await here.connect("a.test", 80, tls=False)
        # A head that is allowed, and a body that ends the connection at once.
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n0;\nGET /hidden HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(looking.wait(), LIMIT_S)
        writer.close()
        decided = await here.event("http", verdict="allow")
        done = await here.event("http-done", of=decided["seq"])
        assert decided["url"] == "http://a.test/" and "before its target was known" in done["error"]


async def test_what_is_open_when_the_box_is_closed_is_ended_and_written(world: World, tmp_path: Path) -> None:
    async def slow(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome")
        await asyncio.sleep(LIMIT_S)

    async with world.upstream("a.test", slow), box(world, A, tmp_path / "gate") as here:
        reader, writer = await here.connect("a.test")
        writer.write(GET + b"\r\n")
        await asyncio.wait_for(reader.readuntil(b"some"), LIMIT_S)
        await here.proxy.closed("box")
        assert (await here.event("http-done"))["error"] == "closed"
        assert await finish(reader, writer) == b""


async def test_a_fault_of_the_gates_own_lets_nothing_through(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from caisson_gate.proxy_room import Room

    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    async with world.upstream("a.test", hello) as outside, box(world, A, tmp_path / "gate") as here:
        monkeypatch.setattr(Room, "decide", broken)
        assert await here.get("a.test") == b""
        assert (await here.event("gate", reason_code="gate_failed"))["detail"] == "RuntimeError: a fault"
        assert not outside.seen


async def test_a_large_answer_streams_in_flat_memory(world: World, tmp_path: Path) -> None:
    size, piece = 160 << 20, b"x" * (1 << 20)

    async def large(_head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()

    async with world.upstream("a.test", large, tls=False), box(world, A, tmp_path / "gate") as here:
        reader, writer = await here.connect("a.test", 80, tls=False)
        writer.write(GET + b"Connection: close\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        before, got = forget_peak(), 0
        while chunk := await asyncio.wait_for(reader.read(1 << 20), LIMIT_S):
            got += len(chunk)
        writer.close()
        assert got == size
        assert peak() - before < 64 << 10  # KiB: far below the body
        assert (await here.event("http-done"))["resp_len"] == size
