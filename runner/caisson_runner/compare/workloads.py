"""Two real workloads, whose ground truth is the box's own state afterwards: every file that is there was written.

``pip`` installs a small wheel from a local folder; ``pytest`` runs a small suite with a child process in each test.
"""

from __future__ import annotations

import io
import statistics
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

from caisson_runner.boxes.engine import Command
from caisson_runner.boxes.local import LocalEngine
from caisson_runner.boxes.store import SnapshotSpec
from caisson_runner.compare import rig
from caisson_runner.compare.errors import CompareError
from caisson_runner.compare.eyes import Eye
from caisson_runner.compare.sights import Sight

MODULES = 40
TESTS = 30


@dataclass(frozen=True, slots=True)
class Load:
    """One workload under one eye. ``expected`` files were written, ``seen`` of them were told; times in seconds."""

    name: str
    eye: str
    wall_s: float
    over: float
    """Wall time as a multiple of that without a witness."""
    expected: int
    seen: int
    processes: int
    processes_seen: int
    note: str


def wheel() -> bytes:
    """A wheel of `MODULES` small modules."""
    files = {f"small/m{number}.py": f"VALUE = {number}\n" for number in range(MODULES)}
    files["small/__init__.py"] = ""
    info = "small-1.0.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, body in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), body)
    return out.getvalue()


def suite() -> bytes:
    """A test module: each test writes a file and runs a program."""
    return (
        "import subprocess\nimport pytest\n\n\n"
        f"@pytest.mark.parametrize('number', range({TESTS}))\n"
        "def test_file_and_program(number):\n"
        "    with open(f'/app/out-{number}', 'w') as file:\n        file.write('x')\n"
        "    subprocess.run(['/bin/true', f'caisson-load-{number}'], check=True)\n"
    ).encode()


LOADS: dict[str, tuple[dict[str, bytes], tuple[str, ...], int]] = {
    "pip install": (
        {"/wheels/small-1.0-py3-none-any.whl": wheel()},
        (
            "/usr/bin/python3", "-m", "pip", "install", "--quiet", "--no-index", "--no-compile", "--no-cache-dir",
            "--disable-pip-version-check", "--root-user-action=ignore", "--target", "/app/site",
            "/wheels/small-1.0-py3-none-any.whl",
        ),
        0,
    ),
    "pytest": (
        {"/app/test_load.py": suite()},
        ("/usr/bin/python3", "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "/app/test_load.py"),
        TESTS,
    ),
}  # fmt: skip
"""Name to (files of its snapshot, command, programs it starts)."""


async def measure(engine: LocalEngine, eyes: Sequence[Eye], rounds: int) -> list[Load]:
    """Every workload under every eye, eyes in turn in each round; medians. The first eye is the yardstick."""
    found: list[Load] = []
    for name, (files, argv, programs) in LOADS.items():
        snapshot = await engine.snapshot(SnapshotSpec(files=dict(files), label=f"compare {name}"))
        done: dict[str, list[tuple[float, int, int, int, str]]] = {eye.name: [] for eye in eyes}
        for _ in range(rounds):
            for eye in eyes:
                run = await rig.work(engine, snapshot, Command(argv), eye)
                if not run.finished.ok:
                    tail = (run.finished.stderr or run.finished.stdout)[-200:].decode("utf-8", "replace")
                    raise CompareError(f"{name} under {eye.name} ended with {run.finished.exit_code}: {tail!r}")
                written, started = told(run.written, run.sights)
                done[eye.name].append((run.finished.wall_s, len(run.written), written, started, run.note))
        base = statistics.median(row[0] for row in done[eyes[0].name])
        for eye in eyes:
            rows = done[eye.name]
            wall = statistics.median(row[0] for row in rows)
            worst = min(rows, key=lambda row: row[2])
            found.append(
                Load(name, eye.name, wall, wall / base, worst[1], worst[2], programs, min(r[3] for r in rows), worst[4])
            )
    return found


def told(written: Sequence[bytes], sights: Sequence[Sight]) -> tuple[int, int]:
    """How many of the written files some observation names, and how many of the started programs.

    Only the last part of a path counts: folders are renamed after their files were written, by pip for one.
    """
    named = {
        name.rpartition(b"/")[2]
        for one in sights
        if one.event in ("open", "change", "pass") and not one.errno
        for name in (*one.names, *((one.object,) if one.object else ()))
    }
    files = sum(path.rpartition(b"/")[2] in named for path in written)
    programs = {
        word for one in sights if one.event == "exec" and one.argv for word in one.argv if b"caisson-load-" in word
    }
    return files, len(programs)
