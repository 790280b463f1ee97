"""``make test-kernels``: the witness tests on Debian's own kernels, each in a virtual machine.

    python tests/vm/run.py --kernels 6.1,6.12 [--quick] [--json FILE] [--jobs 2] [-- PYTEST ARGUMENTS]

Exit codes: 0 every test that could run passed; 1 a test failed; 3 a machine gave no answer, or nothing could be built.
What was seen on each kernel goes to the JSON file, from which ``matrix.py`` writes the table of ``docs/witness.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from machine import Answer, Kernel, MachineError, pack, play, stop_all, sweep

TOP = Path(__file__).resolve().parents[2]
RECIPES = TOP / "packaging/vm"
KERNELS = {
    "5.10": ("bullseye", "linux-image-cloud-amd64"),
    "6.1": ("bookworm", "linux-image-cloud-amd64"),
    "6.12": ("trixie", "linux-image-cloud-amd64"),
    "newest": ("sid", "linux-image-cloud-amd64"),
}
"""Suite and package of each; Debian keeps one kernel line for a release, ``sid`` has the newest."""

SHIPPED = ("bpf", "tracerd", "proto", "runner", "tests/tracerd", "pyproject.toml", "scenarios/routes")
DEFAULT_TESTS = (
    "tests/tracerd/test_tracerd_trampoline.py",
    "tests/tracerd/test_tracerd_record.py",
    "tests/tracerd/test_tracerd_record_kinds.py",
)
QUICK = ("-k", "trampoline", *DEFAULT_TESTS[:2])
"""One tier, one load: what a few minutes of emulation are best spent on."""

NO_TREE = "no source tree of the project at"


@dataclass
class Result:
    """One kernel."""

    kernel: str
    release: str = ""
    seconds: float = 0.0
    problem: str = ""
    tests: dict[str, str] = field(default_factory=dict)
    """Test -> passed, failed, skipped: reason."""
    seen: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    def count(self, word: str) -> int:
        return sum(outcome.split(":")[0] == word for outcome in self.tests.values())


def cache_folder() -> Path:
    """Kernels and images: outside of the repository, so that a fresh clone is quick too."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "caisson/vm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def built(*command: str) -> Path:
    """A path that a recipe prints."""
    done = subprocess.run([str(RECIPES / command[0]), *command[1:]], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise MachineError(f"packaging/vm/{' '.join(command)} ended with {done.returncode}")
    return Path(done.stdout.strip())


def shipped_files(tree: Path) -> dict[str, bytes | Path]:
    """What the guest gets of the work tree: what git knows or would know."""
    listed = subprocess.run(
        ["git", "-C", str(tree), "ls-files", "-z", "-co", "--exclude-standard", "--", *SHIPPED],
        capture_output=True,
        check=True,
    )
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    files = {f"tree/{name}": tree / name for name in names if (tree / name).is_file()}
    if not files:
        raise MachineError(f"{NO_TREE} {tree}")
    return dict(files)


def job(tree: Path, arguments: list[str]) -> bytes:
    """The tests as a job."""
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in arguments)
    script = f"""cd /job/tree
export PYTHONPATH=runner:tracerd:proto:gate CAISSON_SEEN=/out/seen.json GRPC_VERBOSITY=NONE
export CAISSON_VM=1 CAISSON_LOAD_TIMEOUT_S=900
python3 -m caisson_tracerd.cli doctor --json > /out/doctor.json 2>/out/doctor.log
python3 -m pytest -p no:cacheprovider --junitxml=/out/junit.xml --durations=8 {quoted}
"""
    return pack({"job.sh": script.encode(), **shipped_files(tree)})


def judged(answer: Answer, result: Result) -> Result:
    """Read what came back."""
    result.seconds = round(answer.seconds, 1)
    result.log = answer.log.decode(errors="replace")
    if "junit.xml" not in answer.files:
        result.problem = f"pytest left no report (exit code {answer.code})"
        return result
    for case in xml.fromstring(answer.files["junit.xml"]).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = f"failed: {first_line(child.get('message', ''))}"
            elif child.tag == "skipped":
                outcome = f"skipped: {first_line(child.get('message', ''))}"
        result.tests[name] = outcome
    for name in ("seen.json", "doctor.json"):
        try:
            result.seen[name.removesuffix(".json")] = json.loads(answer.files[name])
        except (KeyError, ValueError):
            continue
    return result


def first_line(text: str) -> str:
    return ascii(text.strip().splitlines()[0] if text.strip() else "")[1:-1][:200]


def run_kernel(name: str, image: Path, work: bytes, timeout_s: float, cpus: int) -> Result:
    """Boot one kernel and run the job."""
    suite, package = KERNELS[name]
    result = Result(name)
    try:
        with _fetching:
            kernel = Kernel(name, built("kernel.sh", str(cache_folder()), suite, package))
        result.release = kernel.release
        return judged(play(kernel, image, work, timeout_s, cpus=cpus, scratch=cache_folder()), result)
    except MachineError as problem:
        result.problem = str(problem)
        return result


_fetching = threading.Lock()


def table(results: list[Result]) -> str:
    """A line for each kernel, and one for each test that did not simply pass."""
    lines = [f"{'kernel':<10} {'release':<30} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>8}"]
    for one in results:
        head = f"{one.kernel:<10} {one.release:<30}"
        if one.problem:
            lines.append(f"{head} no answer: {one.problem}")
            continue
        lines.append(
            f"{head} {one.count('passed'):>6} {one.count('failed'):>6} {one.count('skipped'):>7} {one.seconds:>8}"
        )
    for one in results:
        for test, outcome in sorted(one.tests.items()):
            if outcome != "passed":
                lines.append(f"{one.kernel:<10} {test}: {outcome}")
    return "\n".join(lines)


def why_not() -> str | None:
    """The reason why machines cannot be started here."""
    needed = ("qemu-system-x86_64", "mmdebstrap", "mke2fs", "cpio", "zstd", "depmod", "setpriv")
    missing = [tool for tool in needed if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
    if missing:
        return f"{', '.join(missing)} missing; run packaging/vm/setup.sh"
    if os.geteuid() != 0:
        return "the guest's root file system can be built by root only"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="run the witness tests on Debian's kernels in virtual machines")
    parser.add_argument("--kernels", default=",".join(KERNELS), help=f"of {', '.join(KERNELS)}; default: all")
    parser.add_argument("--json", type=Path, help="where to write what was seen")
    parser.add_argument("--jobs", type=int, default=1, help="machines at a time")
    parser.add_argument("--cpus", type=int, default=2, help="processors of each machine")
    parser.add_argument("--timeout", type=float, default=1200.0, help="seconds for one machine")
    parser.add_argument("--tree", type=Path, default=TOP, help="work tree to test")
    parser.add_argument("--quick", action="store_true", help="the trampoline tier and the plain record only")
    parser.add_argument("--verbose", action="store_true", help="print each guest's log")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest in the guest")
    options = parser.parse_args()
    names = [name for name in options.kernels.replace(",", " ").split() if name]
    unknown = [name for name in names if name not in KERNELS]
    if unknown or not names:
        parser.error(f"kernels are {', '.join(KERNELS)}, not {', '.join(unknown) or 'none'}")
    reason = why_not()
    if reason:
        print(f"test-kernels: {reason}", file=sys.stderr)
        return 3
    started = time.monotonic()
    sweep(cache_folder())
    signal.signal(signal.SIGTERM, lambda *_: stop_all())
    try:
        image = built("image.sh", str(cache_folder()))
        tests = [name for name in DEFAULT_TESTS if (options.tree / name).exists()]
        work = job(options.tree, options.pytest or (list(QUICK) if options.quick else tests))
    except MachineError as problem:
        print(f"test-kernels: {problem}", file=sys.stderr)
        return 3
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda name: run_kernel(name, image, work, options.timeout, options.cpus), names))
    for one in results:
        if options.verbose or one.problem or one.count("failed"):
            print(f"--- log of {one.kernel}\n{one.log[-20000:]}")
    print(table(results))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=1, sort_keys=True) + "\n")
    passed, failed = (sum(one.count(word) for one in results) for word in ("passed", "failed"))
    skipped = sum(one.count("skipped") for one in results)
    print(f"kernels: {passed} passed, {failed} failed, {skipped} skipped in {time.monotonic() - started:.0f} s")
    if any(one.problem for one in results):
        return 3
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
