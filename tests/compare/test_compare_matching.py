"""Holding deeds against sights: pure, without any box."""

from __future__ import annotations

import errno

import pytest
from caisson_proto.record import ChangeOp, Flag, Kind, PassOp, Record, decode, encode
from caisson_runner.compare.deeds import Deed, read_log
from caisson_runner.compare.errors import RoutesInvalid
from caisson_runner.compare.matching import judge, same_call, word_of
from caisson_runner.compare.sights import Polled, Sight, of_polls, of_records, of_strace

PATH = b"/dev/shm/n0nce/secret"


def words(deeds: list[Deed], sights: list[Sight]) -> list[str]:
    return [mark.word for mark in judge(deeds, sights)]


def test_an_open_is_seen_by_its_object_and_only_partly_by_the_name_somebody_gave() -> None:
    deed = Deed("open", "openat", path=b"/link", object=PATH, dev=5, ino=9)
    assert words([deed], [Sight("open", names=(b"/link",), object=PATH)]) == ["seen"]
    assert words([deed], [Sight("open", names=(b"/other",), object=b"/alias", ino=(5, 9))]) == ["seen"]
    assert words([deed], [Sight("open", names=(b"/link",))]) == ["partly"]
    assert words([deed], [Sight("open", names=(b"/link",), object=PATH, errno=13)]) == ["missed"]
    assert words([deed], []) == ["missed"]


def test_making_a_file_is_no_proof_that_its_opening_was_seen() -> None:
    deed = Deed("open", "openat", path=PATH, object=PATH, dev=5, ino=9)
    assert words([deed], [Sight("change", "mknod", names=(PATH,), object=PATH, ino=(5, 9))]) == ["missed"]
    assert words([Deed("change", "truncate", path=PATH)], [Sight("change", "mknod", names=(PATH,))]) == ["missed"]


def test_one_sight_serves_one_deed() -> None:
    deed = Deed("open", "openat", path=PATH, object=PATH)
    one = Sight("open", names=(PATH,), object=PATH)
    assert words([deed, deed], [one]) == ["seen", "missed"]
    assert words([Deed("open", "openat", path=PATH, object=PATH, count=3)], [one]) == ["partly"]


def test_spellings_of_one_call_are_the_same_deed_and_others_are_not() -> None:
    assert same_call("rename", "renameat2")
    assert same_call("chmod", "fchmodat")
    assert not same_call("chmod", "chown")


def test_names_told_for_files_that_were_not_opened_are_wrong_unless_marked_as_doubtful() -> None:
    deed = Deed("open", "openat", objects=((b"/a", 2), (b"/b", 1)))
    true = Sight("open", names=(b"/a",), object=b"/a")
    lying = Sight("open", names=(b"/a",), object=b"/b")
    (mark,) = judge([deed], [true, true, lying])
    assert (mark.word, mark.seen, mark.wrong) == ("partly", 3, 1)
    (mark,) = judge([deed], [true, true, Sight("open", names=(b"/a", b"/b"), object=b"/b", doubtful=True)])
    assert (mark.word, mark.wrong) == ("seen", 0)
    (mark,) = judge([deed], [Sight("open", names=(b"/a",))] * 3)
    assert mark.wrong == 1, "without the object the name is all there is: once too often"


def test_a_child_is_known_by_a_name_only_it_opened() -> None:
    deeds = [Deed("fork", "clone", child=4, mark=b"/mark"), Deed("exit", "exit", mark=b"/mark", status=3)]
    sights = [
        Sight("fork", pid=100, child=101),
        Sight("fork", pid=100, child=102),
        Sight("open", pid=102, names=(b"/mark",), errno=2),
        Sight("exit", pid=101, status=3),
    ]
    assert words(deeds, sights) == ["seen", "missed"]
    assert words(deeds, [*sights, Sight("exit", pid=102, status=3)]) == ["seen", "seen"]


def test_a_program_is_seen_with_its_interpreter_or_partly() -> None:
    deed = Deed(
        "exec", "execve", path=b"/s", argv=(b"/s",), argv2=(b"/bin/true", b"/s"), object=b"/t", interp=b"/bin/true"
    )
    assert words([deed], [Sight("exec", argv=(b"/bin/true", b"/s"), object=b"/t", interp=b"/bin/true")]) == ["seen"]
    assert words([deed], [Sight("exec", names=(b"/s",), argv=(b"/s",))]) == ["partly"]
    cut = Deed("exec", "execve", argv=(b"t", b"x" * 100), object=b"/t")
    assert words([cut], [Sight("exec", argv=(b"t", b"xxx"), object=b"/t", doubtful=True)]) == ["partly"]
    assert words([cut], [Sight("exec", argv=(b"t", b"xxx"), object=b"/t")]) == ["missed"], "cut without a mark"


def test_arguments_that_were_never_given_are_wrong() -> None:
    deed = Deed("exec", "execve", argv=(b"real",), object=b"/p", lie=(b"fake",))
    (mark,) = judge([deed], [Sight("exec", argv=(b"fake",), object=b"/p")])
    assert (mark.word, mark.wrong) == ("missed", 1)


def test_how_a_connect_ended_later_belongs_to_it() -> None:
    address = b"\2\0\0\7\x7f\0\0\1" + bytes(8)
    deed = Deed("connect", "connect", addr=address, errno=errno.EINPROGRESS, final=errno.ECONNREFUSED)
    first = Record(Kind.CONNECT, error=errno.EINPROGRESS, addr=address, args=(2, 7, 6, 3, 1, 77))
    later = Record(Kind.CONNECT, error=errno.ECONNREFUSED, flags=Flag.LATER, args=(2, 7, 6, 0, 1, 77))
    assert words([deed], of_records([first, later])) == ["seen"]
    assert words([deed], of_records([first])) == ["partly"]


def test_kinds_with_operations_do_not_mix_up_their_numbers() -> None:
    change = Record(Kind.CHANGE, args=(ChangeOp.RENAME, 0, 0, 5, 9, 0), given=b"/a", new=b"/b")
    passed = Record(Kind.PASS, args=(PassOp.MESSAGE, 4, 0, 5, 9, 0), resolved=PATH)
    seen = of_records([change, passed])
    assert [one.op for one in seen] == ["rename", "recvmsg"]
    assert words([Deed("change", "renameat2", path=b"/a", path2=b"/b")], seen) == ["seen"]
    assert words([Deed("pass", "recvmsg", object=PATH, dev=5, ino=9)], seen) == ["seen"]


def test_lines_of_strace_are_put_together_and_read_to_the_byte() -> None:
    lines = [
        b'7 1.000000000 openat(AT_FDCWD</app>, "/dev/shm/\\377\\n) = 3", O_RDONLY) = 4</dev/shm/\\377\\n) = 3>\n',
        b'7 1.000000000 rename("/a", "/b" <unfinished ...>\n',
        b"8 1.000000000 +++ exited with 3 +++\n",
        b"7 1.000000000 <... rename resumed>) = -1 EXDEV (Invalid cross-device link)\n",
        b'9 1.000000000 execve("/bin/true", ["true", "n0nce"], ["A=["] <unfinished ...>\n',
        b"7 1.000000000 +++ superseded by execve in pid 9 +++\n",
        b"7 1.000000000 <... execve resumed>) = 0\n",
        b'7 1.000000000 sendto(3<UDP:[1]>, "x", 1, 0, {sa_family=AF_INET, sin_port=htons(9), '
        b'sin_addr=inet_addr("198.51.100.5")}, 16) = -1 ENETUNREACH (Network is unreachable)\n',
        b"no line of strace\n",
    ]
    opened, ended, renamed, run, sent = of_strace(lines)
    assert (opened.event, opened.object, opened.errno) == ("open", b"/dev/shm/\xff\n) = 3", 0)
    assert (ended.event, ended.status) == ("exit", 3)
    assert (renamed.names[:2], renamed.errno) == ((b"/a", b"/b"), errno.EXDEV)
    assert run.argv == (b"true", b"n0nce")
    assert sent.addr == b"\2\0\0\x09\xc6\x33\x64\x05" + bytes(8)


def test_a_poller_sees_what_is_held_and_no_failed_call() -> None:
    found = Polled(
        commands=frozenset({(3, (b"sleep", b"9"))}), files=frozenset({(3, PATH), (4, b"/memfd:x (deleted)")})
    )
    sights = list(of_polls(found))
    assert words([Deed("open", "openat", path=PATH, object=PATH)], sights) == ["seen"]
    assert words([Deed("open", "openat", path=PATH, errno=2)], sights) == ["missed"]
    assert words([Deed("fork", "clone", child=3, mark=b"/m")], sights) == ["seen"]
    assert words([Deed("pass", "recvmsg", pid=3, object=b"memfd:x")], sights) == ["missed"], "another process has it"
    assert words([Deed("pass", "recvmsg", pid=4, object=b"memfd:x")], sights) == ["seen"]


def test_a_route_is_seen_when_everything_is() -> None:
    marks = judge(
        [Deed("look", "stat", path=b"/a"), Deed("look", "stat", path=b"/b")], [Sight("look", "stat", names=(b"/a",))]
    )
    assert word_of(marks) == "partly"
    assert word_of(marks[:1]) == "seen"
    assert word_of([]) == "missed"


def test_a_log_says_how_a_route_ended() -> None:
    line = b'{"event": "open", "op": "openat", "pid": 3, "path": "2f61", "errno": 2}'
    log = read_log([line, b'{"ask": "pause"}', b'{"end": "performed", "reason": ""}'])
    assert (log.end, log.deeds) == ("performed", (Deed("open", "openat", 3, path=b"/a", errno=2),))
    assert read_log([line]).end == "not-performed"
    assert read_log([b'{"end": "inapplicable", "reason": "ENOSYS"}']).reason == "ENOSYS"


@pytest.mark.parametrize(
    "line", [b"hello", b'{"event": "feel"}', b'{"event": "open", "path": "zz"}', b'{"x": 1}', b"[]"]
)
def test_what_is_no_deed_is_refused(line: bytes) -> None:
    with pytest.raises(RoutesInvalid):
        read_log([line])


def test_names_a_box_may_choose_do_not_spoil_its_record() -> None:
    """A memfd may have slashes in its name and a namespace has none: both were once unreadable."""
    import struct

    def walk(names: bytes) -> bytes:
        whole = encode(Record(Kind.OPEN, flags=Flag.UNRESOLVED))
        field = struct.pack("<HHI", 4, 0, len(names)) + names
        body = whole[:144] + field
        body += bytes(-len(body) % 8)
        return struct.pack("<IHH", len(body), int(Kind.OPEN), 1) + body[8:]

    assert [one.resolved for one in decode(walk(b"memfd:a/../b\0"))] == [b"memfd:a/../b"]
    assert [one.resolved for one in decode(walk(b"\0"))] == [None]
