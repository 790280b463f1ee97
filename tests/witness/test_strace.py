"""The strace witness against a real strace and real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest
from caisson_proto.record import Flag, Kind, Record
from caisson_runner.witness import Evidence, Limits, WitnessError
from caisson_runner.witness.scratch import owner, scratch
from caisson_runner.witness.strace import StraceWitness
from witness_rig import gone, launch, watched
from witness_story import STORY

pytestmark = pytest.mark.skipif(not shutil.which("strace") or not shutil.which("bwrap"), reason="no strace or bwrap")


async def watched_story(**options: object) -> tuple[Evidence, list[Record]]:
    async with StraceWitness().watch("b1", Limits()) as watch:
        assert await watched(watch, ["/usr/bin/python3", "-c", STORY], **options) == 0
        evidence = await watch.seal()
        return evidence, list(evidence.records())


def opens(records: list[Record]) -> dict[bytes | None, Record]:
    return {one.given: one for one in records if one.kind is Kind.OPEN}


async def test_everything_a_box_did_is_in_the_record_and_nothing_of_its_launch() -> None:
    evidence, records = await watched_story()
    assert evidence.coverage["complete"], evidence.coverage
    first, last = records[0], records[-1]
    assert first.kind is Kind.EXEC
    assert first.argv == (b"/usr/bin/python3", b"-c", STORY.encode())
    assert first.cwd == b"/tmp"
    assert (last.kind, last.pid, last.args[0]) == (Kind.EXIT, first.pid, 0)
    assert first.seq == 1
    seen = opens(records)
    assert seen[b"mine.txt"].resolved == b"/tmp/mine.txt"
    assert seen[b"mine.txt"].open_flags & os.O_CREAT
    assert seen[b"/solution/answer"].error == 2
    assert (seen[b"rel/none"].error, seen[b"rel/none"].cwd) == (2, b"/tmp")
    odd = seen[b'/tmp/\xff\x01<>\n"7']
    assert odd.resolved == odd.given
    assert odd.pid == first.pid != odd.tid
    tries = {one.addr: one.error for one in records if one.kind is Kind.CONNECT}
    assert tries[b"\x02\0\0P\xc0\0\x02\x01" + bytes(8)] == 101
    assert tries[b"\1\0/tmp/no\n.sock\0"] == 2
    execs = [(one.given, one.argv, one.error) for one in records if one.kind is Kind.EXEC]
    assert (b"/nope", (b"/nope", b"a\n", b""), 2) in execs
    assert (b"/bin/sh", (b"sh", b"-c", b"exit 3"), 0) in execs
    exits = {(one.args[0], one.args[1]) for one in records if one.kind is Kind.EXIT and not one.flags & Flag.THREAD}
    assert {(3, 0), (0, 9), (0, 0)} <= exits


async def test_every_process_but_the_first_has_a_fork_that_made_it() -> None:
    _evidence, records = await watched_story()
    made = {one.child for one in records if one.kind is Kind.FORK and not one.flags & Flag.THREAD}
    assert {one.identity for one in records} == made | {records[0].identity}
    parents = {one.identity for one in records}
    assert all((one.ppid, one.parent_start_ns) in parents for one in records if one.identity in made)


async def test_times_are_of_the_boot_clock() -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    _evidence, records = await watched_story()
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert all(before - 50_000_000 <= one.time_ns <= after + 50_000_000 for one in records)


async def test_plain_processes_without_a_box_are_recorded_the_same(tmp_path: Path) -> None:
    evidence, records = await watched_story(box=(), cwd=tmp_path)
    assert evidence.coverage["complete"], evidence.coverage
    assert opens(records)[b"mine.txt"].resolved == os.fsencode(tmp_path / "mine.txt")


@pytest.mark.root
@pytest.mark.rootless
@pytest.mark.skipif(os.getuid() != 0, reason="switching to a plain user needs root")
async def test_plain_user_gets_the_same_record_as_root() -> None:
    code = (
        "import asyncio,sys; sys.path[:0]=sys.argv[2].split(':'); from test_strace import watched_story\n"
        "evidence, records = asyncio.run(watched_story())\n"
        "assert evidence.coverage['complete'], evidence.coverage\n"
        "open(sys.argv[1], 'w').write('\\n'.join(f'{r.kind.name} {r.given} {r.error}' for r in records))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        target = Path(folder) / "out"
        shutil.copytree(Path(__file__).parent, Path(folder) / "tests")
        for package in ("caisson_runner", "caisson_proto"):
            shutil.copytree(Path(sys.modules[package].__path__[0]), Path(folder) / package)
        ours = [path for path in sys.path if path.endswith("site-packages")]
        shutil.copytree(ours[0], Path(folder) / "site", ignore=_only_needed) if ours else None
        process = await asyncio.create_subprocess_exec(
            "/usr/bin/python3", "-c", code, str(target), f"{folder}:{folder}/tests:{folder}/site",
            user=508_900, group=508_900, extra_groups=[], cwd=folder, env={"PATH": "/usr/bin:/bin", "TMPDIR": folder},
        )  # fmt: skip
        assert await process.wait() == 0
        theirs = target.read_text().splitlines()
    _evidence, records = await watched_story()
    mine = [f"{one.kind.name} {one.given!r} {one.error}" for one in records]
    told = ("mine.txt", "/solution", "rel/none", "xff", "/nope", "/bin/sh", "None", "python3'")
    mine, theirs = (sorted(line for line in lines if any(word in line for word in told)) for lines in (mine, theirs))
    assert theirs == mine


async def test_frozen_box_can_be_sealed_and_nothing_remains_after() -> None:
    async with StraceWitness().watch("b1", Limits()) as watch:
        waiting = await launch(["/bin/sh", "-c", "echo x > /tmp/a; sleep 60"], wrap=watch.wrap)
        await watch.admit(waiting.pid)
        waiting.open()
        await asyncio.sleep(0.5)
        evidence = await watch.seal()
        assert b"/tmp/a" in opens(list(evidence.records()))
        assert evidence.coverage["complete"], evidence.coverage
        assert waiting.process.returncode is None
    assert await waiting.finish(5) != 0
    assert await gone(waiting.pid)
    assert not evidence.events_path.exists()


async def test_box_killed_from_outside_leaves_no_strace() -> None:
    async with StraceWitness().watch("b1", Limits()) as watch:
        waiting = await launch(["/bin/sh", "-c", "sleep 60 & sleep 60 & wait"], wrap=watch.wrap)
        await watch.admit(waiting.pid)
        waiting.open()
        await asyncio.sleep(0.3)
        os.kill(waiting.pid, 9)
        await waiting.finish(5)
        records = list((await watch.seal()).records())
    killed = [one for one in records if one.kind is Kind.EXIT and one.args[1] == 9]
    assert waiting.pid in {one.pid for one in killed}


async def test_second_launch_is_merged_by_time() -> None:
    async with StraceWitness().watch("b1", Limits()) as watch:
        await watched(watch, ["/bin/sh", "-c", "exit 1"])
        second = await launch(["/bin/sh", "-c", "exit 2"], wrap=watch.wrap_exec())
        await watch.admit(second.pid)
        second.open()
        await second.finish()
        evidence = await watch.seal()
        records = list(evidence.records())
    assert [one.args[0] for one in records if one.kind is Kind.EXIT] == [1, 2]
    assert [one.time_ns for one in records] == sorted(one.time_ns for one in records)
    assert evidence.coverage["complete"]


async def test_flood_beyond_the_limit_is_counted_and_the_record_is_not_complete() -> None:
    async with StraceWitness(max_log=20_000).watch("b1", Limits()) as watch:
        assert await watched(watch, ["/usr/bin/python3", "-c", "for i in range(500): open('/etc/passwd').close()"]) == 0
        evidence = await watch.seal()
        assert not evidence.coverage["complete"]
        assert evidence.coverage["dropped"] > 300
        assert evidence.coverage["counts"]["line"]["dropped_ring"] == evidence.coverage["dropped"]
        assert list(evidence.records())


async def test_strace_that_dies_in_the_middle_is_a_gap() -> None:
    async with StraceWitness().watch("b1", Limits()) as watch:
        waiting = await launch(["/bin/sleep", "60"], wrap=watch.wrap)
        await watch.admit(waiting.pid)
        waiting.open()
        await asyncio.sleep(0.2)
        tracer = int(Path(f"/proc/{waiting.pid}/status").read_text().split("TracerPid:")[1].split()[0])
        os.kill(tracer, 9)
        await waiting.finish(5)
        evidence = await watch.seal()
    assert not evidence.coverage["complete"]
    assert "strace ended before" in evidence.coverage["gaps"][0]
    assert await gone(waiting.pid), "the box must go with its strace"


async def test_process_that_is_not_traced_is_refused() -> None:
    async with StraceWitness().watch("b1", Limits()) as watch:
        waiting = await launch(["/bin/true"])
        with pytest.raises(WitnessError, match="not under this strace"):
            await watch.admit(waiting.pid)
        waiting.open()
        await waiting.finish()
        evidence = await watch.seal()
        assert not evidence.coverage["complete"], "nothing was admitted"


def test_what_a_killed_runner_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    namespace, pid, ticks = owner().split("-")
    gone = [tmp_path / f"caisson-watch-{name}-x" for name in (f"{namespace}-400000-{ticks}", f"{namespace}-{pid}-1")]
    kept = [tmp_path / f"caisson-watch-{name}-x" for name in (owner(), f"r1-{pid}-1", "other")]
    for folder in (*gone, *kept):
        folder.mkdir()
        (folder / "file").touch()
    with scratch() as mine:
        assert mine.stat().st_mode & 0o777 == 0o700
        assert set(tmp_path.iterdir()) == {mine, *kept}


def _only_needed(folder: str, names: list[str]) -> set[str]:
    """Of site-packages only what the copied test imports."""
    if not folder.endswith("site-packages"):
        return set()
    return {name for name in names if not name.startswith(("pytest", "_pytest", "pluggy", "iniconfig", "packaging"))}
