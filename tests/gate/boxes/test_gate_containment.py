"""A box behind the gate reaches what its policy names, nothing else, and every attempt is on record."""

from __future__ import annotations

import asyncio
import json

from gate_rig import HEAD, WEB, Rig, dump
from http_rig import hello


async def test_an_allowed_name_is_reached_over_http_and_https_with_no_variable_for_it(rig: Rig, nonce: str):
    async with rig.world.upstream("web.test", hello) as secure, rig.one() as boxed:
        done = await boxed.sh(f"curl -sS https://web.test/{nonce}")
        assert done.stdout == b"hello from outside\n", done.stderr
        events = await boxed.closed()
    assert f"/{nonce}".encode() in secure.seen
    told = [one for one in events if one["kind"] == "http"]
    assert [(one["verdict"], one["rule"], one["url"]) for one in told] == [
        ("allow", "web", f"https://web.test/{nonce}")
    ]
    assert all("policy_sha256" in one for one in events)


async def test_plain_http_and_an_address_nobody_gave_out(rig: Rig, nonce: str):
    async with rig.world.upstream("web.test", hello, tls=False) as upstream, rig.one() as boxed:
        done = await boxed.sh(f"curl -sS http://web.test/{nonce}; curl -sS http://198.51.100.7/{nonce}")
        assert b"hello from outside" in done.stdout
        assert b'"reason": "ip_literal"' in done.stdout
        assert upstream.connections == 1
        denied = [one for one in await boxed.closed() if one["kind"] == "http" and one["verdict"] == "deny"]
    assert [(one["url"], one["reason_code"]) for one in denied] == [(f"http://198.51.100.7/{nonce}", "ip_literal")]


TRIES = """
import socket
nonce = b"{nonce}"
def tcp(address, port):
    try:
        with socket.create_connection((address, port), timeout=20) as s:
            s.sendall(nonce)
            return repr(s.recv(100))
    except OSError as problem:
        return type(problem).__name__
def udp(address, port, data):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.sendto(data, (address, port))
for address in ("198.51.100.7", "2001:db8::7", "169.254.169.254", "fd00::7", "10.1.2.3", "::ffff:192.0.2.44"):
    print(address, tcp(address, 22), tcp(address, 5432))
udp("198.51.100.5", 9999, nonce)
udp("2001:db8::5", 9999, nonce)
udp("198.51.100.5", 443, bytes([0xC3, 0, 0, 0, 1, 8]) + nonce.ljust(1200, b"x"))
udp("224.0.0.251", 5353, nonce)
"""


async def test_attempts_that_nothing_answers_are_on_record_with_what_they_carried(rig: Rig, nonce: str):
    async with rig.one() as boxed:
        said = await boxed.py(TRIES.replace("{nonce}", nonce))
        assert said.count("ConnectionRefusedError") == 12, said
        events = await boxed.closed()
    tcp = {tuple(one["orig_dst"]) for one in events if one["kind"] == "tcp"}
    for address in ("198.51.100.7", "2001:db8::7", "169.254.169.254", "fd00::7", "10.1.2.3", "192.0.2.44"):
        assert {(address, 22), (address, 5432)} <= tcp, dump(events)
    udp = {tuple(one["orig_dst"]): one for one in events if one["kind"] == "udp"}
    assert bytes.fromhex(udp["198.51.100.5", 9999]["payload_hex"]) == nonce.encode()
    assert bytes.fromhex(udp["2001:db8::5", 9999]["payload_hex"]) == nonce.encode()
    assert udp["198.51.100.5", 443]["label"] == "QUIC"
    assert udp["224.0.0.251", 5353]["label"] == "mDNS"
    assert all(one["verdict"] == "deny" and one["blocked_by"] == "no listener" for one in udp.values())
    counts = events[-1]["counts"]["packets"]
    assert counts["dropped"] == 0
    assert counts["seen"] == counts["told"] + counts["answered_elsewhere"]


ASK = """
import socket, struct
def question(name, kind=1):
    labels = b"".join(bytes([len(part)]) + part for part in name.encode().split(b".")) + b"\\0"
    return struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack("!2H", kind, 1)
def over_udp(server, packet):
    with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        s.sendto(packet, (server, 53))
        reply, peer = s.recvfrom(600)
        return reply[3] & 15, socket.inet_ntoa(reply[-4:]), peer[0]
def over_tcp(server, packet):
    with socket.create_connection((server, 53), timeout=20) as s:
        s.sendall(len(packet).to_bytes(2, "big") + packet)
        reply = s.recv(600)[2:]
        return reply[3] & 15, socket.inet_ntoa(reply[-4:]), server
for over in (over_udp, over_tcp):
    for server in ("192.0.2.53", "2001:db8::53", "127.0.0.11", "127.0.0.1"):
        print(*over(server, question("web.test")))
        print(*over(server, question("NONCE.other.test")))
print(*over_udp("192.0.2.53", question("web.test")[:-4] + b"\\0\\1"))
"""


async def test_every_server_address_leads_to_the_same_resolver_and_nothing_is_forwarded(rig: Rig, nonce: str):
    async with rig.one() as boxed:
        said = await boxed.py(ASK.replace("NONCE", nonce))
        lines = [line.split() for line in said.splitlines()]
        good, bad = lines[:-1:2], lines[1:-1:2]
        assert {(code, address) for code, address, _ in good} == {("0", "198.18.1.0")}
        assert {code for code, _, _ in bad} == {"3"}
        assert {peer for _, _, peer in lines[:-1]} == {"192.0.2.53", "2001:db8::53", "127.0.0.11", "127.0.0.1"}
        assert lines[-1][0] == "1"
        events = await boxed.closed()
    dns = [one for one in events if one["kind"] == "dns"]
    assert {(one["name_dns"], one["verdict"], one.get("reason_code")) for one in dns if "name_dns" in one} == {
        ("web.test", "allow", None),
        (f"{nonce}.other.test", "deny", "dns_not_allowed"),
    }
    assert [one["reason_code"] for one in dns if "packet_hex" in one] == ["dns_malformed"]
    assert events[-1]["counts"]["dns"]["questions"] == 16


async def test_another_server_name_than_the_one_that_was_asked_for_is_closed(rig: Rig):
    policy = WEB.replace('["web.test"]', '["web.test", "other.test"]')
    async with rig.world.upstream("web.test", hello) as web, rig.world.upstream("other.test", hello) as other:
        async with rig.one(policy) as boxed:
            done = await boxed.sh("curl -sS --connect-to web.test:443:other.test:443 https://web.test/")
            assert done.exit_code != 0
            events = await boxed.closed()
    assert (web.connections, other.connections) == (0, 0)
    [refused] = [one for one in events if one["kind"] == "tls"]
    assert (refused["reason_code"], refused["name_dns"], refused["name_sni"]) == (
        "sni_mismatch",
        "other.test",
        "web.test",
    )


async def test_the_outside_loopback_is_not_reached_by_any_spelling(rig: Rig, nonce: str):
    async with rig.world.upstream("canary.test", hello, tls=False) as canary:
        port = canary.port
        policy = f'{HEAD}[[allow]]\nid = "web"\nhosts = ["trap.test", "localhost.test"]\nports = [80, {port}]\n'
        async with rig.one(policy) as boxed:
            ways = [
                f"curl -sS -m 20 http://127.0.0.1:{port}/{nonce}",
                f"curl -sS -m 20 -x http://198.18.0.1:3128 http://127.0.0.1:{port}/{nonce}",
                f"curl -sS -m 20 -x http://198.18.0.1:3128 http://2130706433:{port}/{nonce}",
                f"curl -sS -m 20 -p -x http://198.18.0.1:3128 http://[::1]:{port}/{nonce}",
                f"curl -sS -m 20 -p -x http://198.18.0.1:3128 http://[::ffff:127.0.0.1]:{port}/{nonce}",
                f"curl -sS -m 20 -x http://198.18.0.1:3128 http://localhost:{port}/{nonce}",
                f"curl -sS -m 20 http://0.0.0.0:{port}/{nonce}",
                f"curl -sS -m 20 -H 'Host: 127.0.0.1:{port}' http://trap.test:{port}/{nonce}",
            ]
            await boxed.sh("; ".join(ways))
            events = await boxed.closed()
    assert canary.connections == 0
    assert nonce.encode() not in canary.seen
    assert not [one for one in events if one["kind"] == "http" and one["verdict"] != "deny"], dump(events)
    assert len([one for one in events if one["kind"] == "http"]) >= 6, dump(events)


async def test_servers_of_the_box_itself_work_and_cannot_stand_in_for_the_gate(rig: Rig):
    async with rig.one() as boxed:
        said = await boxed.py(
            """
import socket
with socket.create_server(("127.0.0.1", 8000)) as server, socket.create_connection(("127.0.0.1", 8000)) as client:
    server.accept()[0].sendall(b"mine")
    print(client.recv(10))
for kind, port in ((socket.SOCK_DGRAM, 53), (socket.SOCK_STREAM, 3128), (socket.SOCK_STREAM, 443)):
    for address in ("0.0.0.0", "127.0.0.1", "192.0.2.1"):
        with socket.socket(socket.AF_INET, kind) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                s.bind((address, port))
                if kind == socket.SOCK_STREAM:
                    s.listen()
                print("BOUND", address, port)
            except OSError:
                pass
"""
        )
    assert said == "b'mine'\n"


async def test_two_boxes_have_the_same_addresses_and_each_its_own_record(rig: Rig, nonce: str):
    async with rig.world.upstream("web.test", hello, tls=False) as upstream, rig.process() as process:
        async with rig.boxed(process) as one, rig.boxed(process) as two:
            await asyncio.gather(
                one.sh(f"curl -sS http://web.test/one-{nonce}"), two.sh(f"curl -sS http://web.test/two-{nonce}")
            )
            first, second = await one.closed(), await two.closed()
    assert upstream.connections == 2
    assert [event["url"] for event in first if event["kind"] == "http"] == [f"http://web.test/one-{nonce}"]
    assert [event["url"] for event in second if event["kind"] == "http"] == [f"http://web.test/two-{nonce}"]
    assert {event["box"] for event in first}.isdisjoint(event["box"] for event in second)


OPAQUE = HEAD + '[[allow]]\nid = "pinned"\nhosts = ["pinned.test"]\ninspect = false\n'


async def test_an_opaque_host_is_spliced_untouched_and_marked(local_rig: Rig, nonce: str):
    rig = local_rig
    async with rig.world.upstream("pinned.test", hello) as upstream, rig.one(OPAQUE) as boxed:
        await boxed.box.put("/tmp/world.pem", rig.world.ca.read_bytes())
        done = await boxed.sh(f"curl -sS --cacert /tmp/world.pem https://pinned.test/{nonce}")
        assert done.stdout == b"hello from outside\n", done.stderr
        events = await boxed.closed()
    assert nonce.encode() in upstream.seen
    opened, ended = [one for one in events if one["kind"] in ("tls", "tcp")]
    assert opened["opaque"] is ended["opaque"] is True
    assert opened["rule"] == "pinned"
    assert ended["req_len"] > 100
    assert ended["resp_len"] > 100
    assert nonce not in json.dumps(events)


async def test_a_flood_is_counted_and_fills_neither_disk_nor_memory(local_rig: Rig):
    count = 60_000
    async with local_rig.one() as boxed:
        await boxed.py(
            f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range({count}):
    s.sendto(b"x" * 40, (f"198.51.100.{{n % 251}}", 1024 + n % 60000))
"""
        )
        events = await boxed.closed()
    counts = events[-1]["counts"]["packets"]
    assert counts["seen"] == count
    assert counts["seen"] - counts["dropped"] == counts["told"] + counts["answered_elsewhere"]
    told = [one for one in events if one["kind"] == "udp"]
    assert len(told) <= 4096
    assert counts["not_told_apart"] > 0


async def test_at_the_deadline_every_connection_ends(local_rig: Rig):
    policy = WEB + "[time]\ndeadline_s = 5\n"
    async with local_rig.world.upstream("web.test", hello, tls=False), local_rig.one(policy) as boxed:
        said = await boxed.py(
            """
import socket
try:
    s = socket.create_connection(("web.test", 80))
    s.sendall(b"GET / HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n")
    while s.recv(1000): pass
except OSError:
    pass  # reset; on a slow machine the deadline may have passed before this began
print("closed")
try:
    socket.create_connection(("198.18.1.0", 80)).recv(10)
except OSError:
    pass
try:
    print(socket.gethostbyname("web.test"))
except OSError:
    print("gone")
"""
        )
        events = await boxed.closed()
    assert said.splitlines() == ["closed", "gone"]
    assert "after_deadline" in {one.get("reason_code") for one in events}, dump(events)
