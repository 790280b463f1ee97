"""Real routes in real boxes under each witness, and what a box can tell of being watched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec, Store
from caisson_runner.compare import plan, rig, visible
from caisson_runner.compare.eyes import Eye, NoEye, PollEye, StraceEye, ebpf_eye
from caisson_runner.compare.report import as_json, as_markdown, by_event, complaints
from caisson_runner.compare.routes import load_routes, select

HANDFUL = (
    "control-held", "open-openat*", "open-io-uring/openat", "open-odd-bytes", "fd-scm-rights", "change-rename/exchange",
    "exec-interp", "proc-clone-untraced", "proc-seccomp-errno", "cgroup-move-child", "sock-udp-send/sendmmsg",
    "open-proc-magic/ns", "open-deleted/memfd-slash",
)  # fmt: skip

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root"),
    pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed"),
]


def strace() -> Eye:
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    return StraceEye()


@pytest.mark.bpf
async def test_a_handful_of_routes_gives_the_declared_results_under_every_witness(
    store: Store, tracerd_socket: Path
) -> None:
    routes = select(load_routes(rig.routes_folder()), HANDFUL, quick=False)
    eyes = [ebpf_eye(tracerd_socket), strace(), PollEye(10)]
    said: list[str] = []
    found = await plan.run(routes, eyes, (), quick=True, loads=False, say=said.append, store=store)
    assert complaints(found) == []
    assert {one.word for one in found.outcomes if one.eye == "none"} == {"performed"}
    by_name = {(one.route.name, one.kind): one for one in found.outcomes}
    assert by_name["open-io-uring/openat", "ebpf"].word == "seen"
    assert by_name["open-io-uring/openat", "strace"].word == "missed"
    assert by_name["open-odd-bytes", "ebpf"].marks[1].deed.path.endswith(b"\x1b[31mred\x1b[0m")  # type: ignore[union-attr]
    assert by_name["open-openat/failed", "polling"].word == "missed"
    assert by_event(found)["open"]["ebpf tracepoint" if "ebpf tracepoint" in found.eyes else found.eyes[0]].seen > 5
    page = as_markdown(found)
    assert "| open-io-uring/openat | seen | missed |" in page
    assert len(as_json(found)["routes"]) == len(found.outcomes)
    assert store.list() and not list((store.home / "boxes").iterdir())


async def test_a_wrong_declaration_is_told(store: Store) -> None:
    (route,) = select(load_routes(rig.routes_folder()), ("open-io-uring/openat",), quick=False)
    expected = {**route.expected, "strace": route.expected["ebpf"]}
    wrong = type(route)(
        route.id, route.case, route.script, route.group, route.allow, route.quick, route.control, route.late, expected
    )
    found = await plan.run([wrong], [strace()], (), quick=True, loads=False, say=lambda _: None, store=store)
    assert complaints(found) == ["open-io-uring/openat under strace: missed, expected seen"]
    assert not found.good


async def test_a_route_that_this_box_forbids_is_inapplicable_and_says_why(store: Store) -> None:
    (route,) = select(load_routes(rig.routes_folder()), ("open-io-uring/openat",), quick=False)
    async with LocalEngine(store) as engine:
        snapshot = await engine.snapshot(SnapshotSpec(label="compare"))
        outcome = await rig.perform(engine, snapshot, route, NoEye())
    assert (outcome.word, outcome.reason) == ("inapplicable", "io_uring_setup: EPERM")


@pytest.mark.bpf
async def test_nothing_in_a_box_tells_that_ebpf_watches_and_much_tells_of_strace(
    store: Store, tracerd_socket: Path
) -> None:
    async with LocalEngine(store) as engine:
        snapshot = await engine.snapshot(SnapshotSpec(label="compare"))
        without = [await visible.ask(engine, snapshot, NoEye()) for _ in range(2)]
        watched = [await visible.ask(engine, snapshot, ebpf_eye(tracerd_socket)) for _ in range(2)]
        traced = await visible.ask(engine, snapshot, strace())
    assert without[0].answers == without[1].answers, "the probe itself answers the same in any two boxes"
    for one in watched:
        assert list(one.answers.items()) == list(without[0].answers.items()), "byte for byte"
    by_ebpf = visible.compared("ebpf", "ebpf", without, watched)
    assert not by_ebpf.shows, by_ebpf
    by_strace = visible.compared("strace", "strace", without, [traced])
    assert {"ptrace me", "seccomp"} <= set(by_strace.answers)
    assert traced.answers["ptrace me"] == '"EPERM"'
    assert max(ratio for _, ratio in by_strace.slower) > 2


async def test_what_a_box_may_not_know_is_not_there(store: Store) -> None:
    async with LocalEngine(store) as engine:
        snapshot = await engine.snapshot(SnapshotSpec(label="compare"))
        answers = (await visible.ask(engine, snapshot, NoEye())).answers
    assert '"/sys/fs/bpf": "ENOENT"' in answers["folders"]
    assert set(answers["bpf"].strip("{}").split('"')[3::4]) == {"EPERM"}
    assert answers["symbols"] == '{"listed": false, "programs": []}'
    assert "EPERM" in answers["kernel log"] and answers["perf"] == '"EPERM"'
