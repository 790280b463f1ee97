"""Forks do not see each other; the final state is captured exactly and comes back exactly."""

from __future__ import annotations

import asyncio
import io
import tarfile

import pytest
import zstandard
from caisson_runner.boxes import capture as captures
from caisson_runner.boxes.engine import BoxLimits, Command
from caisson_runner.boxes.errors import BoxFileError, StateInvalid, StateTooLarge

WORK = r"""
set -e
rm gone.txt
rm -r folder && mkdir folder && echo new > folder/three.txt
echo changed >> kept.txt
chmod 600 kept.txt
mkdir -p deep/er && chmod 500 deep
ln -s ../nowhere link
mkfifo pipe
ln kept.txt hard.txt
rm -r /logs/agent
printf 'x' > "$(printf 'odd\n\033[31m\377name')"
"""
SHOW = r"""
find /app /logs -printf '%P|%y|%m|%s|%l\n' | sort; cat folder/* kept.txt hard.txt; ls -b
"""


async def test_forks_are_isolated_from_each_other_and_from_the_snapshot(engine, snapshot, sh):
    async with engine.fork(snapshot) as one, engine.fork(snapshot) as two:
        await sh(one, "echo poison > kept.txt; echo x > /tmp/shared; echo x > /dev/shm/shared; echo x > /etc/passwd")
        seen = await sh(two, "cat kept.txt; ls /tmp /dev/shm; head -c 4 /etc/passwd")
    async with engine.fork(snapshot) as three:
        again = await sh(three, "cat kept.txt; ls /tmp /dev/shm; head -c 4 /etc/passwd")
    assert seen.stdout == again.stdout == b"kept\n/dev/shm:\n\n/tmp:\nroot"


async def test_diff_names_what_was_added_changed_and_removed(engine, snapshot, sh):
    async with engine.fork(snapshot) as box:
        assert (await sh(box, WORK)).ok
        assert (await sh(box, "cat /etc/passwd > /tmp/p; cat /tmp/p > /etc/passwd; rm /tmp/p; touch /etc/group")).ok
        found = {change.path: change for change in await box.diff()}
    assert {path: change.how for path, change in found.items()} == {
        b"app/deep": "added",
        b"app/deep/er": "added",
        b"app/folder/one.txt": "removed",
        b"app/folder/three.txt": "added",
        b"app/folder/two.txt": "removed",
        b"app/gone.txt": "removed",
        b"app/hard.txt": "added",
        b"app/kept.txt": "changed",
        b"app/link": "added",
        b"app/odd\n\x1b[31m\xffname": "added",
        b"app/pipe": "added",
        b"logs/agent": "removed",
    }
    assert found[b"app/kept.txt"].sha256 == found[b"app/hard.txt"].sha256
    assert found[b"app/link"].target == b"../nowhere"
    assert (found[b"app/pipe"].kind, found[b"app/kept.txt"].mode) == ("fifo", 0o600)


async def test_captured_state_comes_back_exactly_in_a_fresh_fork(engine, snapshot, sh, tmp_path):
    async with engine.fork(snapshot) as box:
        assert (await sh(box, WORK)).ok
        before = await sh(box, SHOW)
        first = await box.capture(tmp_path / "state.tar.zst")
    async with engine.fork(snapshot, state=tmp_path / "state.tar.zst") as room:
        after = await sh(room, SHOW)
        second = await room.capture(tmp_path / "again.tar.zst")
    assert after.stdout == before.stdout and before.ok
    assert second.digest == first.digest == captures.state_digest(tmp_path / "state.tar.zst")
    assert second.changes == first.changes
    async with engine.fork(snapshot, state=(tmp_path / "state.tar.zst").read_bytes()) as room:
        assert (await sh(room, SHOW)).stdout == before.stdout


async def test_same_work_gives_the_same_digest_in_every_fork(engine, snapshot, sh, tmp_path):
    digests = set()
    for number in range(3):
        async with engine.fork(snapshot) as box:
            assert (await sh(box, WORK)).ok
            await asyncio.sleep(0.01 * number)
            digests.add((await box.capture(tmp_path / f"{number}.tar.zst")).digest)
    assert len(digests) == 1
    async with engine.fork(snapshot) as box:
        await sh(box, WORK + "echo more > more")
        assert (await box.capture(tmp_path / "other.tar.zst")).digest not in digests


async def test_restored_prefixes_show_the_snapshot_again(engine, snapshot, sh, tmp_path):
    line = "echo fake > kept.txt; ln kept.txt other.txt; rm -r folder; echo fake > folder; echo mine > mine"
    async with engine.fork(snapshot) as box:
        assert (await sh(box, line)).ok
        await box.capture(tmp_path / "state.tar.zst")
    async with engine.fork(
        snapshot, state=tmp_path / "state.tar.zst", restore=["/app/kept.txt", "/app/folder/one.txt"]
    ) as room:
        done = await sh(room, "cat kept.txt folder/one.txt other.txt mine; ls -a /")
    assert done.stdout.startswith(b"kept\n1\nfake\nmine\n")
    assert b"caisson" not in done.stdout


async def test_a_live_box_is_captured_while_it_runs_and_runs_on(engine, snapshot, tmp_path, sh):
    async with engine.fork(snapshot) as box:
        process = await box.start(Command(("/bin/sh", "-c", "while :; do echo x >> log; sleep 0.01; done")))
        await asyncio.sleep(0.2)
        await box.capture(tmp_path / "one.tar.zst")
        size = len(await box.get("log"))
        await asyncio.sleep(0.3)
        assert len(await box.get("log")) > size
        await box.freeze()
        size = len(await box.get("log"))
        await asyncio.sleep(0.2)
        assert len(await box.get("log")) == size
        await box.thaw()
        await asyncio.sleep(0.2)
        assert len(await box.get("log")) > size
        await box.freeze()
        await process.kill()  # also a frozen box can be killed


async def test_files_are_put_and_read_as_the_box(engine, snapshot, sh):
    async with engine.fork(snapshot) as box:
        await box.put("/app/new/file.txt", b"x" * 200_000, 0o640)
        assert (await sh(box, "stat -c '%a %u %s' new/file.txt")).stdout == b"640 0 200000\n"
        assert await box.get("new/file.txt") == b"x" * 200_000
        with pytest.raises(BoxFileError, match="larger than 10"):
            await box.get("new/file.txt", limit=10)
        with pytest.raises(BoxFileError, match="No such file"):
            await box.get("/etc/caisson-absent")
        await sh(box, "mkfifo trap; ln -s /usr/bin/env out; mkdir d")
        for name in ("trap", "d", "/dev/zero"):
            with pytest.raises(BoxFileError):
                await box.get(name)
        with pytest.raises(BoxFileError):
            await box.put("/usr/bin/evil", b"")
        with pytest.raises(BoxFileError):
            await box.put("out", b"")


async def test_state_with_giant_sparse_files_is_named_not_swallowed(engine, snapshot, sh, tmp_path):
    limits = BoxLimits(disk_bytes=32 << 20)
    async with engine.fork(snapshot, limits=limits) as box:
        assert (await sh(box, "for i in 1 2 3 4 5 6 7 8; do truncate -s 32M s$i; done")).ok
        with pytest.raises(StateTooLarge, match="more than"):
            await box.capture(tmp_path / "state.tar.zst")
        assert list(tmp_path.iterdir()) == []


async def test_deep_nesting_does_not_break_the_capture(engine, snapshot, py, tmp_path):
    source = "import os\nfor _ in range(750): os.mkdir('d' * 20); os.chdir('d' * 20)"
    async with engine.fork(snapshot) as box:
        assert (await py(box, source)).ok
        captured = await box.capture(tmp_path / "state.tar.zst")
    assert captured.entries == 751  # app itself was copied up


def _tar(*infos: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info in infos:
            tar.addfile(info, io.BytesIO(b"x" * info.size) if info.size else None)
    return zstandard.compress(out.getvalue())


def _info(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, target, size, 0o755
    return info


@pytest.mark.parametrize(
    "infos",
    [
        [_info("../escape")],
        [_info("/etc/escape")],
        [_info("a/./b")],
        [_info("a", tarfile.SYMTYPE, "/etc"), _info("a/escape")],
        [_info("a", tarfile.LNKTYPE, "../../etc/passwd")],
        [_info("a", tarfile.BLKTYPE)],
        [_info("a"), _info("a")],
    ],
    ids=["parent", "absolute", "dot", "through-link", "hard-link", "device", "twice"],
)
async def test_hostile_state_is_refused(engine, snapshot, infos):
    with pytest.raises(StateInvalid, match="state could not be unpacked"):
        async with engine.fork(snapshot, state=_tar(*infos)):
            raise AssertionError("the state was taken")


async def test_damaged_state_is_refused(engine, snapshot):
    with pytest.raises(StateInvalid):
        async with engine.fork(snapshot, state=_tar(_info("a", size=100_000))[:-40]):
            raise AssertionError("the state was taken")


async def test_state_larger_than_the_limit_is_refused_by_name(engine, snapshot):
    state = _tar(*[_info(f"f{number}", size=1 << 20) for number in range(20)])
    with pytest.raises(StateTooLarge, match="8388608 bytes"):
        async with engine.fork(snapshot, state=state, limits=BoxLimits(disk_bytes=8 << 20)):
            raise AssertionError("the state was taken")
