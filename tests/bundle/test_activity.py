"""The view of a run: who wrote what, told to a person, from synthetic records of the shapes both witnesses give."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

from caisson_proto.record import Flag, Kind, Record
from caisson_runner.bundle import StoredChange, activity, as_json, text_of

NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class Story:
    """Writes records one after the other."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, kind: Kind, pid: int, **fields: object) -> Story:
        made = Record(kind, seq=len(self.records) + 1, time_ns=len(self.records), pid=pid, tid=pid, start_ns=pid * 10)
        self.records.append(replace(made, **fields))  # type: ignore[arg-type]
        return self

    def fork(self, pid: int, child: int, **fields: object) -> Story:
        return self.add(Kind.FORK, pid, args=(child, child, child * 10, 17, 0, 0), **fields)

    def exec(self, pid: int, *argv: bytes, error: int = 0) -> Story:
        return self.add(
            Kind.EXEC, pid, given=b"/bin/" + argv[0], argv=argv, error=error, cwd=b"/app", comm=argv[0][:15]
        )

    def open(self, pid: int, path: bytes, flags: int = 0, error: int = 0) -> Story:
        return self.add(
            Kind.OPEN, pid, given=path, resolved=None if error else path, error=error, args=(0, flags, 0, 0, 0, 0)
        )

    def exit(self, pid: int, code: int = 0, signal: int = 0) -> Story:
        return self.add(Kind.EXIT, pid, args=(code, signal, 0, 0, 0, 0))


def added(*paths: bytes, how: str = "added") -> list[StoredChange]:
    return [StoredChange(path, how, "file", 0o644, 1, "", b"") for path in paths]


def shown(story: Story, changes: list[StoredChange] = [], **options: object) -> str:  # noqa: B006
    model = activity(story.records, changes, "/app", ["/app/tests"])
    return text_of(model, **options)  # type: ignore[arg-type]


def section(text: str, title: str) -> str:
    return text.partition("\n" + title + "\n")[2].partition("\n\n")[0]


def test_it_says_who_wrote_conftest_by_pid_and_command() -> None:
    story = Story().exec(7, b"sh", b"run.sh").fork(7, 8).exec(8, b"tee", b"conftest.py")
    story.open(8, b"/app/conftest.py", NEW).exit(8).exit(7)
    text = section(shown(story, added(b"app/conftest.py")), "Tests and test configuration touched")
    assert "added    /app/conftest.py  by pid 8 tee conftest.py" in text


def test_it_says_which_fork_of_a_shell_wrote_when_no_program_did() -> None:
    story = Story().exec(7, b"sh", b"-c", b"(echo x > conftest.py)").fork(7, 8).open(8, b"/app/conftest.py", NEW)
    text = shown(story, added(b"app/conftest.py"))
    assert "by pid 8, fork of 7 sh -c '(echo x > conftest.py)'" in text
    assert "(fork of " in section(text, "Processes")


def test_edited_test_that_was_renamed_into_place_names_the_likely_editor() -> None:
    story = Story().exec(7, b"sed", b"-i", b"s/5/6/", b"tests/test_add.py")
    story.open(7, b"/app/tests/test_add.py").open(7, b"/app/tests/sedXy", NEW).exit(7)
    text = section(shown(story, added(b"app/tests/test_add.py", how="changed")), "Tests and test configuration touched")
    assert "changed  /app/tests/test_add.py  not by an open; likely pid 7 sed -i s/5/6/ tests/test_add.py" in text
    assert "opened for writing /app/tests/sedXy" in text


def test_file_renamed_over_a_test_names_who_renamed_it() -> None:
    story = Story().exec(7, b"sed", b"-i", b"s/5/6/", b"tests/test_add.py").open(7, b"/app/tests/sedXy", NEW)
    change = {"given": b"tests/sedXy", "cwd": b"/app", "new": b"./tests/test_add.py", "args": (1, 0, 0, 0, 0, 0)}
    story.add(Kind.CHANGE, 7, **change).exit(7)
    story.exec(8, b"rm").add(Kind.CHANGE, 8, given=b"/app/tests/test_old.py", args=(4, 0, 0, 0, 0, 0))
    story.add(Kind.CHANGE, 9, given=b"/app/tests/test_kept.py", args=(4, 0, 0, 0, 0, 0), error=errno.EACCES)
    changes = [
        *added(b"app/tests/test_add.py", how="changed"),
        *added(b"app/tests/test_old.py", b"app/tests/test_kept.py", how="removed"),
    ]
    text = section(shown(story, changes), "Tests and test configuration touched")
    assert "changed  /app/tests/test_add.py  by rename by pid 7 sed -i s/5/6/ tests/test_add.py" in text
    assert "removed  /app/tests/test_old.py  by unlink by pid 8 rm" in text
    assert "test_kept.py  not by an open" in text


def test_files_below_a_renamed_folder_name_who_renamed_it() -> None:
    story = Story().exec(7, b"mv").add(Kind.CHANGE, 7, given=b"/tmp/x", new=b"/app/lib", args=(1, 0, 0, 0, 0, 0))
    assert "added    /app/lib/deep/a.py  by rename by pid 7 mv" in shown(story, added(b"app/lib/deep/a.py"))


def test_the_outcome_of_a_connect_under_way_replaces_it() -> None:
    story = Story().exec(7, b"curl")
    address = {"args": (2, 443, 6, 3, 1, 9), "addr": b"\2\0\1\xbb\xc0\0\2\1" + bytes(8)}
    story.add(Kind.CONNECT, 7, error=errno.EINPROGRESS, **address)
    story.add(Kind.CONNECT, 7, error=errno.ECONNREFUSED, flags=Flag.LATER, **address)
    assert section(shown(story), "Connects tried").strip() == "192.0.2.1:443  ECONNREFUSED  by pid 7 curl"


def test_it_says_who_wrote_outside_the_workspace() -> None:
    story = Story().exec(7, b"python3", b"x.py").open(7, b"/usr/lib/python3/dist-packages/a.pth", NEW)
    story.open(7, b"/etc/passwd", os.O_WRONLY, errno.EROFS).open(7, b"/tmp/scratch", NEW)
    text = shown(story, added(b"usr/lib/python3/dist-packages/a.pth"))
    outside = section(text, "Written outside the workspace")
    assert "added    /usr/lib/python3/dist-packages/a.pth  by pid 7 python3 x.py" in outside
    assert "refused: /etc/passwd [EROFS]  by pid 7 python3 x.py" in outside
    assert "/tmp/scratch" not in text
    assert "/tmp/scratch" in shown(story, everything=True)


def test_it_says_who_looked_for_the_answer() -> None:
    story = Story().exec(7, b"cat").open(7, b"/solution/solve.sh", 0, errno.ENOENT).open(7, b"/tests/test.sh")
    rooms = section(shown(story), "Places of answers and graders looked into")
    assert "/solution/solve.sh  not there or refused [ENOENT]  by pid 7 cat" in rooms
    assert "/tests/test.sh  opened ×1  by pid 7 cat" in rooms


def test_connects_show_where_and_what_came_of_it() -> None:
    story = Story().exec(7, b"curl")
    for _ in range(2):
        story.add(Kind.CONNECT, 7, error=101, args=(2, 443, 6, 3, 1, 0), addr=b"\2\0\1\xbb\xc0\0\2\1" + bytes(8))
    story.add(Kind.CONNECT, 7, args=(1, 0, 0, 3, 1, 0), addr=b"\1\0\0abstract\x1b")
    text = section(shown(story), "Connects tried")
    assert "192.0.2.1:443  ENETUNREACH ×2  by pid 7 curl" in text
    assert r"unix:@abstract\x1b  connected" in text


def test_tree_shows_every_command_a_process_became_and_how_it_ended() -> None:
    story = Story().exec(7, b"sh", b"-c", b"exec env true").exec(7, b"nope", error=2).exec(7, b"env", b"true")
    story.exec(7, b"true").fork(7, 8).exec(8, b"sleep", b"").exit(8, signal=9).exit(7, 3)
    tree = section(shown(story), "Processes").splitlines()
    assert [line.split(None, 1)[0] for line in tree] == ["7", "→", "→", "8"]
    assert tree[0].endswith("sh -c 'exec env true'")
    assert tree[2].endswith("true  ← exit 3")
    assert tree[3].endswith("  sleep ''  ← killed by SIGKILL")
    assert "1 execs refused" in shown(story)


def test_orphan_keeps_the_parent_that_made_it() -> None:
    story = Story().exec(7, b"sh").fork(7, 8).exit(7)
    story.add(Kind.EXEC, 8, ppid=1, parent_start_ns=1, given=b"/bin/daemon", argv=(b"daemon",))
    model = activity(story.records)
    assert model.roots == [(7, 70)]
    assert model.processes[(8, 80)].parent == (7, 70)


def test_checks_of_the_harness_are_told_apart() -> None:
    story = Story().exec(7, b"agent").exit(7).exec(9, b"pytest").open(9, b"/app/tests/test_a.py").fork(9, 10)
    story.open(10, b"/app/out.xml", NEW)
    model = activity(story.records, (), "/app", ["/app/tests"], harness=[9])
    text = text_of(model)
    assert "(the harness's own check: pytest)" in text
    assert "out.xml" not in text
    assert "Tests and test configuration touched" not in text


def test_patterns_of_visible_tests_are_below_the_workspace() -> None:
    story = Story().exec(7, b"x").open(7, b"/app/check/spec.py", NEW).open(7, b"/other/check/spec.py", NEW)
    model = activity(story.records, (), "/app", ["check/*.py"])
    assert {one.path for one in model.written() if "test" in one.tags} == {b"/app/check/spec.py"}


def test_incomplete_record_is_the_first_line() -> None:
    coverage = {"complete": False, "reason": "3 events were dropped", "witness": "ebpf", "tier": "tracepoint"}
    text = shown(Story().exec(7, b"x"), coverage=coverage)
    assert text.splitlines()[0] == "THE RECORD IS NOT COMPLETE: 3 events were dropped"
    assert "NOT COMPLETE" not in shown(Story(), coverage=coverage | {"complete": True})


def test_nothing_a_box_made_reaches_the_terminal_raw() -> None:
    evil = b"\x1b]0;owned\x07\x9b31m\r\n\xff\xe2\x80\xae[bold]"
    story = Story().exec(7, evil, evil).open(7, b"/app/tests/" + evil, NEW).open(7, b"/solution/" + evil)
    story.add(Kind.CONNECT, 7, args=(1, 0, 0, 3, 1, 0), addr=b"\1\0/" + evil)
    changes = added(b"app/tests/" + evil, b"etc/" + evil, b"app/" + evil)
    text = shown(story, changes, title=evil.decode("latin1"), everything=True)
    assert all(line.isprintable() for line in text.splitlines())
    assert r"\x1b]0;owned\x07" in text
    dumped = json.dumps(as_json(activity(story.records, changes)))
    assert dumped.isascii()
    assert "\\u001b" not in dumped


def test_long_sections_say_how_much_is_left_out() -> None:
    story = Story()
    for at in range(100):
        story.exec(1000 + at, b"x").exit(1000 + at)
    tree = section(shown(story), "Processes").splitlines()
    assert len(tree) == 41
    assert tree[-1].strip() == "… and 60 more lines (--all shows them)"
    assert len(section(shown(story, everything=True), "Processes").splitlines()) == 100


def test_pid_used_again_is_another_process() -> None:
    story = Story().exec(7, b"first").exit(7, 1)
    story.add(Kind.EXEC, 7, start_ns=999, given=b"/bin/second", argv=(b"second",))
    model = activity(story.records)
    assert [one.commands[0].argv for one in model.processes.values()] == [(b"first",), (b"second",)]


def test_threads_are_no_processes() -> None:
    story = Story().exec(7, b"x")
    story.add(Kind.FORK, 7, flags=Flag.THREAD, args=(7, 70, 70, 0x10000, 0, 0))
    story.add(Kind.EXIT, 7, flags=Flag.THREAD, tid=70)
    model = activity(story.records)
    assert len(model.processes) == 1
    assert not model.processes[(7, 70)].ended
