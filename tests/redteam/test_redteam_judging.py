"""What stopped a try, whether an outcome is as it must be, and what the reports say. No boxes."""

from __future__ import annotations

import errno
import json
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from caisson_runner.boxes import seccomp
from caisson_runner.boxes.engine import Finished
from caisson_runner.boxes.engine import Outcome as Ended
from caisson_runner.compare.deeds import Deed
from caisson_runner.redteam import blame, gated, report
from caisson_runner.redteam.canaries import Held, nonces_in
from caisson_runner.redteam.errors import RegisterInvalid
from caisson_runner.redteam.outcome import BLOCKED, INAPPLICABLE, NOT_PERFORMED, REACHED, Outcome, complain
from caisson_runner.redteam.outside import Names, answer, unmasked
from caisson_runner.redteam.register import Route
from caisson_runner.redteam.rig import read, recorded

INET = struct.pack("<H", socket.AF_INET) + struct.pack(">H", 443) + socket.inet_aton("198.51.100.7") + bytes(8)
SIX = (
    struct.pack("<H", socket.AF_INET6)
    + struct.pack(">HI", 80, 0)
    + socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + bytes(4)
)


def route(**said: Any) -> Route:
    usual: dict[str, Any] = {
        "id": "r", "case": "", "script": Path("r.py"), "group": "B1", "networks": ("none", "gate"),
        "engines": ("docker",), "quick": False, "control": False, "sibling": False,
        "silent": {}, "open": {}, "policy": "", "documented": "",
        "blocked": {"none": frozenset({"no-route"}), "gate": frozenset({"gate:ip_literal"})},
    }  # fmt: skip
    return Route(**{**usual, **said})


@pytest.mark.parametrize(
    ("deed", "word"),
    [
        (Deed("connect", "connect", addr=INET, errno=errno.ENETUNREACH), "no-route"),
        (Deed("connect", "connect", addr=INET, errno=errno.ECONNREFUSED), "no-listener"),
        (Deed("connect", "connect", addr=INET), ""),
        (Deed("connect", "connect", addr=b"\1\0/run/x\0", errno=errno.ENOENT), "mount"),
        (Deed("connect", "connect", addr=b"\1\0\0name", errno=errno.ECONNREFUSED), "no-listener"),
        (Deed("socket", "socket", family=40, type=1, errno=errno.ENOSYS), "seccomp"),
        (Deed("socket", "socket", family=2, type=2, protocol=136, errno=errno.ENOSYS), "seccomp"),
        (Deed("socket", "socket", family=2, type=3, protocol=1, errno=errno.EPERM), "caps"),
        (Deed("socket", "socket", family=2, type=1, protocol=132, errno=errno.EPROTONOSUPPORT), "kernel"),
        (Deed("cross", "bpf", errno=errno.EPERM), "seccomp"),
        (Deed("cross", "ptrace", errno=errno.ESRCH), "pidns"),
        (Deed("cross", "ptrace", errno=errno.EPERM), "caps"),
        (Deed("open", "openat", path=b"/x", errno=errno.EROFS), "mount"),
    ],
)
def test_an_errno_names_what_stopped_a_try(deed: Deed, word: str) -> None:
    assert blame.blocker(deed) == word


@pytest.mark.parametrize(
    ("call", "answer_"),
    [
        (("socket", 2, 1, 0), None), (("socket", 2, 1 | 0o2000000, 6), None), (("socket", 10, 2, 17), None),
        (("socket", 2, 3, 1), None), (("socket", 16, 3, 0), None), (("socket", 1, 1, 0), None),
        (("socket", 2, 1, 262), errno.ENOSYS), (("socket", 10, 2, 136), errno.ENOSYS),
        (("socket", 2, 1, 132), errno.ENOSYS), (("socket", 2, 2, 1), errno.ENOSYS),
        (("socket", 2, 10, 768), errno.ENOSYS), (("socket", 2, 6, 33), errno.ENOSYS),
        (("socket", 40, 1, 0), errno.ENOSYS), (("socket", 38, 5, 0), errno.ENOSYS),
        (("socket", 17, 3, 0), errno.ENOSYS),
        (("socket", 16, 3, 12), errno.ENOSYS), (("socketpair", 1, 1, 0), None), (("socketpair", 2, 1, 0), errno.ENOSYS),
        (("keyctl",), errno.EPERM), (("clone3",), errno.ENOSYS), (("read",), None), (("no_such_call",), errno.ENOSYS),
    ],
)  # fmt: skip
def test_the_filter_says_itself_which_calls_it_refuses(call: tuple[Any, ...], answer_: int | None) -> None:
    assert seccomp.answer(*call) == answer_


def test_what_a_profile_allows_is_what_the_filter_answers_nothing_to() -> None:
    rules = [rule for rule in seccomp.profile()["syscalls"] if "socket" in rule["names"]]
    for family, kind, protocol in (
        (2, 1, 0),
        (2, 1, 6),
        (10, 2, 17),
        (2, 3, 47),
        (2, 2, 136),
        (10, 1, 262),
        (2, 1, 132),
        (40, 1, 0),
    ):

        def fits(arg: dict[str, Any], words: tuple[int, ...] = (family, kind, protocol)) -> bool:
            value = words[arg["index"]]
            if arg["op"] == "SCMP_CMP_MASKED_EQ":
                return value & arg["value"] == arg["valueTwo"]
            return value == arg["value"]

        allowed = any(all(fits(arg) for arg in rule["args"]) for rule in rules)
        assert allowed == (seccomp.answer("socket", family, kind, protocol) is None)


@pytest.mark.parametrize(
    ("said", "facts", "complaint", "note"),
    [
        ({}, ("none", BLOCKED, [], ["no-route"], ["witness (x)"]), "", ""),
        ({}, ("none", REACHED, ["a canary"], [], ["witness (x)"]), "it reached: a canary", ""),
        ({}, ("none", BLOCKED, [], ["seccomp"], ["witness (x)"]), "stopped by seccomp, expected no-route", ""),
        ({}, ("none", BLOCKED, [], ["no-route"], []), "nothing recorded it", ""),
        ({"silent": {"x": "why"}}, ("none", BLOCKED, [], ["no-route"], []), "", "unrecorded: why"),
        # What was sent must be in the gate's record; what never left the process need not.
        ({"silent": {"x": "why"}}, ("gate", BLOCKED, [], ["gate:ip_literal"], []), "nothing recorded it", ""),
        (
            {"silent": {"x": "y"}, "blocked": {"gate": {"seccomp"}}},
            ("gate", BLOCKED, [], ["seccomp"], []), "", "unrecorded",
        ),
        ({"open": {"docker": "so it is"}}, ("none", REACHED, ["x"], [], ["w"]), "", "known to be open: so it is"),
        ({"open": {"local-root": "so"}}, ("none", REACHED, ["x"], [], ["w"]), "it reached", ""),
        ({"blocked": {"gate": {"passes"}}}, ("gate", REACHED, ["world"], [], ["w"]), "", ""),
        ({"blocked": {"gate": {"passes"}}}, ("gate", BLOCKED, [], ["gate:protocol"], ["w"]), "it must pass", ""),
        ({}, ("none", NOT_PERFORMED, [], [], []), "not performed", ""),
        ({"documented": "why"}, ("none", NOT_PERFORMED, [], [], []), "", "why"),
        ({}, ("none", INAPPLICABLE, [], [], []), "", ""),
        ({"control": True}, ("none", INAPPLICABLE, [], [], []), "control", ""),
    ],
)  # fmt: skip
def test_an_outcome_is_good_only_when_it_is_stopped_as_declared_and_recorded(
    said: dict[str, Any], facts: tuple[Any, ...], complaint: str, note: str
) -> None:
    network, verdict, reached, blocked_by, recorded_by = facts
    found, noted = complain(route(**said), "docker", network, "x", verdict, reached, blocked_by, recorded_by)
    assert complaint in "; ".join(found) and bool(found) == bool(complaint)
    assert noted.startswith(note) and bool(noted) == bool(note)


def test_a_route_that_may_pass_may_not_reach_more_than_that() -> None:
    passing = route(blocked={"gate": frozenset({"passes"})})
    found, _ = complain(passing, "docker", "gate", "x", REACHED, ["world"], [], ["w"], ["world 127.0.0.1:80/tcp"])
    assert found == ["it passes, but also: world 127.0.0.1:80/tcp"]


def test_a_journal_names_who_refused_and_who_saw() -> None:
    told = gated.Told(
        (
            {"seq": 1, "kind": "gate", "what": "opened"},
            {"seq": 2, "kind": "tls", "verdict": "deny", "reason_code": "sni_mismatch",
             "orig_dst": ["198.51.100.7", 443]},
            {"seq": 3, "kind": "tcp", "verdict": "deny", "reason_code": "port_not_allowed", "blocked_by": "no listener",
             "orig_dst": ["2001:db8::7", 80]},
            {"seq": 4, "kind": "http-done", "verdict": "allow", "error": "broke off"},
        )
    )  # fmt: skip
    assert told.blockers() == ["gate:sni_mismatch", "gate:port_not_allowed", "no-listener", "gate:error"]
    assert told.recorders() == ["gate-front", "packet", "gate-http"]
    assert told.places() == [2, 3]
    by_address = [Deed("connect", "connect", addr=INET), Deed("connect", "connect", addr=SIX, errno=111)]
    who, where = recorded("strace", by_address, [], told, Path("e/n/r"))
    assert who == ["gate-front", "packet", "gate-http"] and where[0] == "e/n/r/events.jsonl#2"
    elsewhere = Deed("connect", "connect", addr=INET[:4] + socket.inet_aton("198.51.100.8") + bytes(8))
    assert recorded("strace", [*by_address, elsewhere], [], told, Path("r")) == ([], [])


def test_a_script_that_says_nothing_has_not_performed() -> None:
    ended = Finished(Ended.EXITED, 1, None, b"", b"Traceback\nNameError: x", False, 0.1)
    said = read(ended)
    assert said.end == NOT_PERFORMED and "NameError" in said.reason
    assert read(replace(ended, exit_code=127, detail="/usr/bin/python3: No such file")).end == INAPPLICABLE
    with pytest.raises(RegisterInvalid, match="no line of ours"):
        read(replace(ended, stdout=b'{"end": "performed"}\n'))
    good = b'noise\n{"end": "performed", "reason": "", "tries": [{"event": "connect", "op": "connect"}], "saw": {}}\n'
    assert read(replace(ended, stdout=good)).deeds[0].event == "connect"


def test_a_canary_holds_only_what_it_heard() -> None:
    held = Held("5ec")
    held.expect("abc1")
    held.expect("abc2")
    held.hear("somewhere", b"...ABC1...")
    assert held.hits("abc1") == ["somewhere"] and held.hits("abc2") == []
    held.forget("abc1")
    held.hear("somewhere", b"abc1")
    assert held.hits("abc1") == []
    assert nonces_in(b"x 5EC y", ("5ec", "no")) == ["5ec"]


def test_the_world_answers_for_its_names_alone() -> None:
    def ask(name: str) -> bytes:
        question = b"".join(bytes([len(part)]) + part for part in name.encode().split(b".")) + b"\0\0\1\0\1"
        return Names_.answer(struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + question)

    Names_ = Names()
    assert ask("web.allowed.test").endswith(socket.inet_aton("203.0.113.80"))
    assert ask("loop.allowed.test").endswith(socket.inet_aton("127.0.0.1"))
    assert ask("turn.allowed.test") != ask("turn.allowed.test") == ask("turn.allowed.test")
    assert ask("example.com")[3] & 15 == 3
    assert Names_.answer(b"\0\7\1") == b"" and Names_.answer(b"\0\7\1\0\0\1" + bytes(6) + b"\xff") == b""


def test_a_canary_answers_what_a_route_needs() -> None:
    assert b"Location: http://web.denied.test/_\r\n" in answer(
        b"GET /redirect?to=http://web.denied.test/_ HTTP/1.1\r\n\r\n", "s"
    )
    head = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer(head, "s")  # RFC 6455's own example
    assert b"canary s" in answer(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "s")
    assert (
        unmasked(bytes([0x81, 0x85, 1, 2, 3, 4]) + bytes(b ^ (i % 4 + 1) for i, b in enumerate(b"hello"))) == b"hello"
    )


OUTCOMES = (
    Outcome("a/x", "a", "B1", "docker", "none", "ebpf", BLOCKED, (), ("no-route",), ("witness (ebpf)",), ("p#1",)),
    Outcome(
        "a/x", "a", "B1", "local-root", "none", "strace", REACHED, ("\x1b[31m",), complaints=("it reached: \x1b[31m",)
    ),
    Outcome("b", "b", "B4", "docker", "none", "ebpf", REACHED, ("y",), (), ("w",), note="known to be open: z"),
)
FOUND = report.Report(
    "a host", OUTCOMES, {"local-rootless": "no user"}, {"a": "scenarios/routes/egress/a.py"}, {"a": "A way"}
)


def test_reports_say_the_same_and_no_byte_of_a_box_reaches_a_terminal() -> None:
    said = report.as_json(FOUND)
    assert not said["good"] and said["absent"] == {"local-rootless": "no user"}
    assert "\x1b" not in json.dumps(said, ensure_ascii=False)
    assert Outcome.from_json(OUTCOMES[0].to_json()) == OUTCOMES[0]
    sarif = report.as_sarif(FOUND)
    levels = [(one["ruleId"], one["level"]) for one in sarif["runs"][0]["results"]]
    assert sarif["version"] == "2.1.0" and levels == [("a", "error"), ("b", "note")]
    where = sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert where == "scenarios/routes/egress/a.py"
    page = report.as_markdown(FOUND)
    assert "\x1b" not in page and "known to be open: z" in page and "local-rootless was not tried" in page
